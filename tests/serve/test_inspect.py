"""POST /v1/inspect: what a model's layers do with a text, while the server keeps answering."""

import json
import subprocess
import threading

import pytest

pytestmark = pytest.mark.mechanism("lola", "macchiato", "blurry_window", "gla", "mamba")
TEXT = "The keeper lit the lamp. The lamp was lit."


@pytest.fixture(scope="module", name="kinds")
def fixture_kinds(program, root, tmp_path_factory):
    """A run over bytes whose layers have different kinds of memory."""
    run = tmp_path_factory.mktemp("runs") / "kinds"
    mixers = [
        {"mixer": "lola", "chunk": 8, "cache": 4},
        {"mixer": "macchiato", "window": 8, "latents": 16},
        {"mixer": "blurry_window", "slots": 9, "period": 18},
        {"mixer": "gla"},
        {"mixer": "mamba"},
    ]
    config = {
        "dim": 32, "heads": 4, "layers": [{"mixer": it} for it in mixers], "positions": "rotary", "norm": "rms",
        "context": 64, "training": {"steps": 4, "batch": 4, "warmup": 1, "evaluate_every": 4, "tokenizer": "byte"},
    }  # fmt: skip
    path = run.parent / "kinds.json"
    path.write_text(json.dumps(config))
    command = [str(program), "train", str(path), "--out", str(run), "--quiet"]
    subprocess.run(command, check=True, capture_output=True, cwd=root)
    return run


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, tiny, kinds):
    with start_server("--model", f"tiny={tiny}", "--model", f"kinds={kinds} --weights int8") as server:
        yield server


def inspect(server, **fields):
    status, reply = server.post("/v1/inspect", {"prompt": TEXT, "model": "kinds", **fields})
    assert status == 200, reply
    return reply


def head_of(server, layer, head=1):
    found = inspect(server, layers=[layer], heads=[head])["layers"][0]
    assert [it["head"] for it in found["heads"]] == [head]
    return found, found["heads"][0]


def test_the_tokens_and_the_layers(server):
    reply = inspect(server)
    assert "".join(reply["pieces"]) == TEXT and len(reply["tokens"]) == len(TEXT)
    assert [it["mixer"] for it in reply["model_layers"]] == ["lola", "macchiato", "blurry_window", "gla", "mamba"]
    assert [it["layer"] for it in reply["layers"]] == [0]
    assert [it["head"] for it in reply["layers"][0]["heads"]] == [0, 1, 2, 3]


def test_memories_and_what_decided(server):
    layer, head = head_of(server, 0)
    assert layer["memories"] == ["window", "cache", "state"]
    for t, row in enumerate(head["places"]):
        first = max(0, (t // 8 - 1) * 8)
        assert row[first:] == "0" * (t + 1 - first) and "-" not in row
        assert row[:first].count("1") == min(4, first)
    # The highest of the ranked ones stay.
    assert [it["before"] for it in head["decisions"]] == [16, 24, 32, 40]
    for it in head["decisions"]:
        stayed = [score for score, stays in zip(it["scores"], it["stays"], strict=True) if stays]
        left = [score for score, stays in zip(it["scores"], it["stays"], strict=True) if not stays]
        assert len(stayed) == 4 and min(stayed) >= max(left) - 1e-3
        for token, stays in zip(it["tokens"], it["stays"], strict=True):
            assert head["places"][it["before"]][token] == ("1" if stays else "2")
    for row in head["weights"]:
        assert sum(row) == pytest.approx(1, abs=2e-3)


def test_latents(server):
    latents = head_of(server, 1)[1]["latents"]
    assert latents["window"] is True
    for row in latents["p"]:
        assert len(row) == 5 and sum(row) == pytest.approx(1, abs=2e-3)


def test_slots(server):
    slots = head_of(server, 2)[1]["slots"]
    assert len(slots["write"]) == len(slots["keep"]) == len(TEXT) and len(slots["contents"]) == 9
    for write, keep in zip(slots["write"], slots["keep"], strict=True):
        assert [a + b for a, b in zip(write, keep, strict=True)] == pytest.approx([1] * 9, abs=1e-3)


def test_gates(server):
    layer, head = head_of(server, 3)
    assert len(head["gates"]["norm"]) == len(TEXT) and 0 < min(head["gates"]["decay"]) <= max(head["gates"]["decay"]) <= 1
    assert layer["same_for_channels"] is True


def test_a_mixer_without_weights_says_so(server):
    layer, head = head_of(server, 4)
    assert "no weights of tokens" in layer["no_weights"] and "weights" not in head


def test_a_text_of_one_token(server):
    reply = inspect(server, prompt="a", layers=[0, 1, 2, 3, 4])
    heads = [it["heads"][0] for it in reply["layers"]]
    assert [it.get("weights") for it in heads[:3]] == [[[pytest.approx(1, abs=1e-3)]]] * 3
    assert heads[0]["places"] == ["0"] and heads[0]["decisions"] == []
    assert len(heads[2]["slots"]["contents"]) == 9 and len(heads[3]["gates"]["norm"]) == 1


def test_parts(server):
    head = inspect(server, layers=[0], heads=[0], parts=["memories"])["layers"][0]["heads"][0]
    assert set(head) == {"head", "places", "decisions"}


def test_token_numbers_and_the_other_model(server):
    status, reply = server.post("/v1/inspect", {"model": "tiny", "prompt": [65, 66, 67], "layers": [0, 1]})
    assert status == 200 and reply["pieces"] == ["A", "B", "C"] and len(reply["layers"]) == 2


def test_a_conversation_of_a_model_that_was_not_taught_to_is_one_text(server):
    messages = [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    status, reply = server.post("/v1/inspect", {"model": "tiny", "messages": messages})
    assert status == 200 and reply["pieces"] == ["A", "B", "\n", "C"], reply


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": "a" * 513}, "prompt", "at most 512"),
        ({"prompt": "a" * 512, "model": "tiny", "layers": [0, 1]}, "heads", "fewer layers"),
        ({"layers": [5]}, "layers", "0 to 4"),
        ({"heads": [4]}, "heads", "heads 0 to 3"),
        ({"parts": ["weight"]}, "parts", '"weights"'),
        ({"layer": 1}, "layer", 'did you mean "layers"'),
        ({"prompt": None}, "prompt", "messages"),
    ],
)
def test_what_is_refused(server, fields, param, words):
    status, reply = server.post("/v1/inspect", {"prompt": TEXT, "model": "kinds", **fields})
    assert status == 400 and reply["error"]["param"] == param, reply
    assert words in reply["error"]["message"]


@pytest.mark.slow
def test_answers_are_as_without_it_and_one_text_is_inspected_at_a_time(server):
    def answer():
        body = {"model": "kinds", "prompt": TEXT, "max_tokens": 40, "seed": 7, "ignore_eos": True}
        return server.post("/v1/completions", body)[1]["choices"][0]["text"]

    alone, found, over = answer(), [], threading.Event()

    def look():
        body = {"model": "kinds", "prompt": TEXT * 6, "layers": [0, 1, 2, 3], "heads": [0]}
        while not over.is_set():
            found.append(server.post("/v1/inspect", body)[0])

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    texts = [answer() for _ in range(6)]
    while not {200, 429} <= set(found):
        texts.append(answer())
    over.set()
    for thread in threads:
        thread.join()
    assert set(texts) == {alone} and set(found) == {200, 429}
    assert server.metric("cortado_inspect_seconds_count") > 0
    assert 'path="/v1/inspect",status="200"' in server.get("/metrics")
