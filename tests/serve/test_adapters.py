"""`cortado serve --adapter`: models with low-rank adapters beside their base, against peft."""

import json
import shutil

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

SIZES = dict(vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             initializer_range=0.2, bos_token_id=None, eos_token_id=None, pad_token_id=None)  # fmt: skip
PROMPT = list(b"To be, or not to be, that is the question:")
ADAPTERS = {
    "all": dict(r=4, lora_alpha=8, target_modules="all-linear"),
    "rooted": dict(r=3, lora_alpha=2, target_modules=["q_proj", "down_proj"], use_rslora=True, layers_to_transform=[1]),
}


def fresh():
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


@pytest.fixture(scope="module", name="folder")
def fixture_folder(tmp_path_factory):
    """A model, BASE, and folders of peft's adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    fresh().save_pretrained(folder / "base")
    for name, settings in ADAPTERS.items():
        adapted = peft.get_peft_model(fresh(), peft.LoraConfig(**settings, task_type="CAUSAL_LM"))
        with torch.no_grad():
            for key, parameter in adapted.named_parameters():
                if "lora_B" in key:
                    parameter.normal_(0, 0.3)
        adapted.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, folder):
    words = [word for name in ADAPTERS for word in ("--adapter", f"{name}={folder / name}")]
    with start_server(folder / "base", *words) as server:
        yield server


def scores(server, model):
    status, reply = server.post("/v1/completions", {"model": model, "prompt": PROMPT, "max_tokens": 0, "echo": True, "logprobs": 0})
    assert status == 200, reply
    return torch.tensor(reply["choices"][0]["logprobs"]["token_logprobs"][1:])


def expected(model):
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        return model(tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


@pytest.mark.parametrize("name", ["base", *ADAPTERS])
def test_scores_are_pefts(name, server, folder):
    model = fresh() if name == "base" else peft.PeftModel.from_pretrained(fresh(), folder / name).eval()
    assert (scores(server, name) - expected(model)).abs().max() < 1e-4


def test_who_is_whose(server):
    entries = {entry["id"]: entry for entry in json.loads(server.get("/v1/models"))["data"]}
    assert {name: entry["parent"] for name, entry in entries.items()} == {"base": None, "all": "base", "rooted": "base"}


def test_each_has_its_own_states(server):
    """A prompt that the base has read is read again by the others."""
    for name in ("base", "all", "base"):
        status, reply = server.post("/v1/completions", {"model": name, "prompt": PROMPT, "max_tokens": 1, "temperature": 0})
        assert status == 200
        first = reply["usage"]["prompt_tokens_details"]["cached_tokens"] if name == "all" else None
        assert first in (None, 0)


@pytest.mark.parametrize("weights", ["int8", "int4", "bfloat16"])
def test_narrow_weights_are_shared(weights, start_server, folder):
    """The adapters' products are added to those of the narrow weights."""
    with start_server(folder / "base", "--adapter", f"all={folder / 'all'}", "--weights", weights) as server:
        base, adapted = scores(server, "base"), scores(server, "all")
    plain = expected(fresh())
    wanted = expected(peft.PeftModel.from_pretrained(fresh(), folder / "all").eval())
    assert (adapted - wanted).abs().mean() < 0.5 * (adapted - plain).abs().mean() and (base - plain).abs().mean() < (base - wanted).abs().mean()


def damaged(folder, tmp_path, kind):
    copy = tmp_path / "adapter"
    shutil.copytree(folder / "all", copy)
    config = json.loads((copy / "adapter_config.json").read_text())
    tensors = load_file(copy / "adapter_model.safetensors")
    first = next(iter(tensors))
    if kind == "dora":
        config["use_dora"] = True
    elif kind == "ranks":
        config["r"] = 5
    elif kind == "layer":
        tensors[first.replace("layers.0", "layers.9")] = tensors.pop(first)
    elif kind == "head":
        tensors["base_model.model.lm_head.lora_A.weight"] = torch.zeros(4, 32)
    (copy / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, copy / "adapter_model.safetensors")
    return copy


@pytest.mark.parametrize(("kind", "words"), [("dora", "use_dora"), ("ranks", "is of another model"), ("layer", "layers.9"), ("head", "lm_head")])
def test_what_does_not_fit_is_refused(kind, words, folder, refused, tmp_path):
    line = refused("serve", folder / "base", "--adapter", f"it={damaged(folder, tmp_path, kind)}", "--port", 0)
    assert words in line, line


def test_wrong_options(folder, refused, tmp_path):
    assert "NAME=FOLDER" in refused("serve", folder / "base", "--adapter", folder / "all", "--port", 0)
    assert "two models have the name base" in refused("serve", folder / "base", "--adapter", f"base={folder / 'all'}", "--port", 0)
    assert "adapter_config.json" in refused("serve", folder / "base", "--adapter", f"it={tmp_path}", "--port", 0)
    assert "belongs to a model" in refused("serve", "--model", f"x={folder / 'base'}", "--adapter", f"it={folder / 'all'}", "--port", 0)


def test_a_run_of_train_with_lora(start_server, cortado, tmp_path):
    """Its weights have the adapters merged into them, and its lora.safetensors has them alone."""
    settings = {"batch": 2, "context": 16, "steps": 4, "warmup": 1, "evaluate_every": 4, "tokenizer": "byte", "learning_rate": 0.1, "dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps({"dim": 32, "heads": 2, "layers": 2, "mixer": {"mixer": "softmax"}, "training": settings}))
    (tmp_path / "text.txt").write_text("all work and no play\n" * 200)
    for words in ([tmp_path / "config.json", "--out", tmp_path / "plain"], [tmp_path / "plain", "--lora", 4, "--out", tmp_path / "tuned"]):
        done = cortado("train", *words, "--data", tmp_path / "text.txt", "--threads", 1)
        assert done.returncode == 0, done.stderr
    with start_server("--model", f"plain={tmp_path / 'plain'} --adapter adapted={tmp_path / 'tuned'} --checkpoint last",
                      "--model", f"merged={tmp_path / 'tuned'} --checkpoint last") as server:  # fmt: skip
        plain, adapted, merged = (scores(server, name) for name in ("plain", "adapted", "merged"))
    assert (adapted - merged).abs().max() < 1e-4 < (adapted - plain).abs().max()
