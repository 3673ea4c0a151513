"""POST /v1/embeddings: vectors of texts, against the hidden states of transformers, with OpenAI's own package."""

import base64

import numpy as np
import openai
import pytest
import torch
import transformers

TEXTS = ["To be, or not to be", "that is the question:", "x" * 700]
SIZES = dict(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)  # fmt: skip


@pytest.fixture(scope="module", name="model")
def fixture_model():
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings") / "bytes"
    model.save_pretrained(folder)
    with start_server(folder, "--max-waiting", 2, "--max-rows", 2, "--piece", 64) as server:
        yield server


@pytest.fixture(scope="module", name="client")
def fixture_client(server):
    return openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0)


def numbers_of(text):
    return list(text.encode())


def expected(model, text, pooling):
    with torch.no_grad():
        hidden = model.model(torch.tensor([numbers_of(text)])).last_hidden_state[0]
    return {"mean": hidden.mean(0), "last": hidden[-1], "cls": hidden[0]}[pooling].numpy()


@pytest.mark.parametrize("pooling", ["mean", "last", "cls"])
def test_vectors_are_the_models(pooling, model, client):
    """The long text is read in pieces, and there are more texts than the server reads at a time."""
    texts = TEXTS * 3
    reply = client.embeddings.create(model="bytes", input=[numbers_of(text) for text in texts], extra_body={"pooling": pooling, "normalize": False})
    assert [one.index for one in reply.data] == list(range(9)) and reply.usage.prompt_tokens == sum(map(len, texts)) == reply.usage.total_tokens
    for text, one in zip(texts, reply.data):
        wanted = expected(model, text, pooling)
        assert np.abs(np.array(one.embedding) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_length_one_and_fewer_dimensions(model, client, server):
    wanted = expected(model, TEXTS[0], "mean")[:7]
    wanted /= np.linalg.norm(wanted)
    short = client.embeddings.create(model="bytes", input=numbers_of(TEXTS[0]), dimensions=7, encoding_format="float").data[0].embedding
    assert np.abs(np.array(short) - wanted).max() < 1e-6
    status, reply = server.post("/v1/embeddings", {"input": numbers_of(TEXTS[0]), "dimensions": 7, "encoding_format": "base64"})
    packed = np.frombuffer(base64.b64decode(reply["data"][0]["embedding"], validate=True), dtype=np.float32)
    assert status == 200 and np.array_equal(packed, np.array(short, dtype=np.float32))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("input", [], "must be a text"), ("input", [[]], "has no tokens"), ("input", [[1, 300]], "from 0 to 299"), ("input", "words", "tokenizer"),
     ("input", [[1]] * 2049, "2049 texts"), ("dimensions", 33, "dimensions"), ("pooling", "max", "pooling"), ("encoding_format", "hex", "encoding_format")],
)  # fmt: skip
def test_what_is_refused(field, value, words, server):
    status, reply = server.post("/v1/embeddings", {"model": "bytes", "input": [[1, 2]], field: value})
    assert status == 400 and words in reply["error"]["message"], reply


def test_texts_of_a_model_with_a_tokenizer(start_server, talker):
    with start_server(talker) as server:
        status, reply = server.post("/v1/embeddings", {"input": ["The king sleeps.", "The queen sleeps.", "Two plus two is four."]})
    king, queen, sum_ = (np.array(one["embedding"]) for one in reply["data"])
    assert status == 200 and king @ queen > king @ sum_ and abs(np.linalg.norm(king) - 1) < 1e-6
