"""`cortado import` against transformers: logits and greedy continuations of random small models, and of SmolLM2."""

import json
import pathlib
import signal
import subprocess

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers

from gguf_files import read_llama, write_gguf
from pretrained_models import LLAMA3, MODELS, OTHERS, SIZES, YARN, longrope, make_model
from quick import quick
from until import wait_until

TOLERANCE = 2e-4


@pytest.fixture(scope="module")
def language_model(mixer):
    """language_model(run, dtype) -> torch.classes.cortado.LanguageModel."""
    return torch.classes.cortado.LanguageModel


@pytest.fixture
def imported(cortado, tmp_path):
    """imported(source, *options) -> the run's folder."""

    def run(source, *options, name="run"):
        done = cortado("import", source, "--out", tmp_path / name, *options)
        assert done.returncode == 0, done.stderr
        return str(tmp_path / name)

    return run


def greedy(ours, tokens, count):
    """Returns the greedy continuation."""
    written = [ours.read(tokens, True).argmax(-1, keepdim=True)]
    while len(written) < count:
        written.append(ours.read(written[-1]).argmax(-1, keepdim=True))
    return torch.cat(written, 1)


def check(model, ours, close, count=100):
    """Compares a batch's logits, at once and in pieces, and the greedy continuation."""
    tokens = torch.randint(0, model.config.vocab_size, (2, 70))
    with torch.no_grad():
        expected = model(tokens).logits
        close(ours.forward(tokens), expected, TOLERANCE, "logits")
        close(ours.resume(tokens, 13), expected, TOLERANCE, "logits through the state")
        written = model.generate(tokens[:1, :20], do_sample=False, max_new_tokens=count, min_new_tokens=count)
    assert torch.equal(greedy(ours, tokens[:1, :20], count), written[:, 20:])


@pytest.mark.parametrize("name", [*MODELS, *OTHERS])
def test_a_hugging_face_folder(name, imported, language_model, close, tmp_path):
    model, _ = make_model(name)
    model.save_pretrained(tmp_path / "source")
    check(model, language_model(imported(tmp_path / "source"), "float32"), close)


@pytest.mark.parametrize("name", ["mistral", "qwen3_sliding", "gemma", "gemma3_text", "smollm3_marked", "granite", "phi3_partly", "phi3_long", "qwen3_yarn", "seed_oss", "qwen3_moe", "olmo2", "olmo3"])
def test_unequal_lengths_and_what_was_saved(name, imported, close, root, tmp_path, monkeypatch):
    """Texts of unequal lengths in one call; they go on from a saved state, in a model that was saved anew."""
    monkeypatch.syspath_prepend(root / "python")
    from cortado.models import load

    model, _ = make_model(name)
    model.save_pretrained(tmp_path / "source")
    ours = load(imported(tmp_path / "source"))
    begun, rest = ([torch.randint(67, (1, length)) for length in lengths] for lengths in ((5, 31, 1, 20), (17, 2, 40, 1)))

    def bounds(texts):
        return torch.tensor([0, *(text.shape[1] for text in texts)]).cumsum(0)

    with torch.no_grad():
        first, state = ours(torch.cat(begun, 1), ours.state(len(begun)), bounds(begun))
        torch.save(state, tmp_path / "state")
        ours.save(tmp_path / "again")
        state = torch.load(tmp_path / "state")
        second, _ = load(tmp_path / "again")(torch.cat(rest, 1), state, bounds(rest))
        for number, texts in enumerate(zip(begun, rest)):
            found = [part[:, slice(*bounds(all_of)[number : number + 2])] for part, all_of in ((first, begun), (second, rest))]
            close(torch.cat(found, 1), model(torch.cat(texts, 1)).logits, TOLERANCE, f"text {number}")


STRETCHED = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(("name", "changes", "words"), [
    ("qwen3", {"hidden_act": "gelu"}, ["gelu", "silu"]),
    ("qwen3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, ["sliding_window"]),
    ("qwen3", {"layer_types": ["chunked_attention"] * 3}, ["chunked_attention"]),
    ("qwen3", {"rope_parameters": STRETCHED}, ["dynamic", "computed anew", "default"]),
    ("qwen3", {"rope_parameters": {"rope_type": "proportional"}}, ["proportional", "longrope"]),
    ("qwen3", {"quantization_config": {"bits": 4}}, ["quantised"]),
    ("gemma", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping"]),
    ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, ["rope_type", "full_attention"]),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, ["sliding_attention"]),
    ("gemma3_text", {"rope_parameters": {"sliding_attention": {"rope_theta": 5e3}}, "rope_local_base_freq": 1e4}, ["rope_local_base_freq"]),
    ("gemma3_text", {"rope_parameters": {"full_attention": STRETCHED}}, ["rope_parameters.full_attention", "dynamic"]),
    ("smollm3", {"no_rope_layers": [1, 0]}, ["no_rope_layers", "5 layers"]),
    ("smollm3", {"no_rope_layers": [1, 0, 1, 2, 1]}, ["no_rope_layers", "2"]),
    ("granite", {"residual_multiplier": 0.0}, ["residual_multiplier"]),
    ("granite", {"residual_multiplier": 0.01}, ["residual_multiplier", "rms_norm_eps"]),
    ("granite", {"attention_multiplier": -1.0}, ["attention_multiplier"]),
    ("phi3_long", {"rope_parameters": longrope(5)}, ["6 rotary frequencies", "5 factors"]),
    ("phi3_long", {"rope_parameters": {**longrope(6), "short_factor": [1.0] * 5}}, ["5 short", "6 long"]),
    ("phi3_long", {"rope_parameters": {**longrope(6), "long_factor": [1.0] * 5 + [0.0]}}, ["long_factor", "positive"]),
    ("phi3_long", {"rope_parameters": {**longrope(6), "original_max_position_embeddings": 32}}, ["original_max", "32 here", "16 in the config"]),
    ("phi3", {"num_key_value_heads": 2}, ["qkv_proj", "expected 96 rows"]),
    ("phi3", {"intermediate_size": 81}, ["gate_up_proj"]),
    ("seed_oss", {"attention_out_bias": True}, ["o_proj.bias"]),
    ("olmo2", {"hidden_act": "gelu"}, ["gelu"]),
    ("olmo2", {"rope_parameters": STRETCHED}, ["dynamic", "computed anew"]),
    ("olmo3", {"layer_types": ["chunked_attention"] * 5}, ["layer_types", "sliding_attention"]),
    ("olmo3", {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, ["sliding_attention"]),
    ("llama2", {"model_type": "olmo1"}, ["olmo1", "llama, mistral, qwen2, qwen3, smollm3", "gemma3_text", "phi3", "mamba"]),
])  # fmt: skip
def test_what_a_family_may_not_say(name, changes, words, refused, tmp_path):
    model, _ = make_model(name)
    model.save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    line = refused("import", tmp_path / "source", "--out", tmp_path / "none")
    assert all(word in line for word in words), line


def as_transformers_4(config):
    """The config as transformers 4 wrote it."""
    old = dict(config)
    rope = dict(old.pop("rope_parameters"))
    if sliding := rope.pop("sliding_attention", None):
        old["rope_local_base_freq"] = sliding["rope_theta"]
        rope = dict(rope["full_attention"])
    old["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    old["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    if rope["rope_type"] == "linear":  # as it was called at first
        rope["type"] = rope.pop("rope_type")
    old["torch_dtype"] = old.pop("dtype")
    if old["model_type"] != "gemma3_text":  # a pattern of layers was a number
        old.pop("layer_types", None)
    elif len(old["layer_types"]) == 7:
        del old["layer_types"]
    if old["model_type"].startswith("gemma"):
        old.pop("tie_word_embeddings", None)
    return old


@pytest.mark.parametrize("name", MODELS)
def test_configs_of_transformers_4(name, imported, tmp_path):
    model, _ = make_model(name)
    model.save_pretrained(tmp_path / "source")
    new = pathlib.Path(imported(tmp_path / "source", name="new"), "config.json").read_text()
    path = tmp_path / "source" / "config.json"
    path.write_text(json.dumps(as_transformers_4(json.loads(path.read_text()))))
    assert pathlib.Path(imported(tmp_path / "source", name="old"), "config.json").read_text() == new


@pytest.mark.parametrize(("changes", "like"), [
    ({"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_type": "default", "rope_theta": 5e5}),
    ({"rope_scaling": {**LLAMA3, "type": "llama3", "attention_factor": None}}, LLAMA3),
    ({"rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 2e4}, "rope_theta": 2e4},
     {"rope_type": "linear", "factor": 4.0, "rope_theta": 2e4}),
    ({"rope_scaling": {**YARN, "truncate": False}}, {**YARN, "truncate": False}),
    ({"rope_scaling": {"type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5}},
     {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5}),
    ({"rope_scaling": {**YARN, "attention_factor": 1.7, "mscale": 1.0}}, {**YARN, "attention_factor": 1.7, "mscale": 1.0}),
    ({"rope_scaling": longrope(6), "original_max_position_embeddings": 32},  # which gives the attention factor
     {**longrope(6), "original_max_position_embeddings": 32}),
    ({"rope_scaling": longrope(6, factor=3.0)}, longrope(6, factor=3.0)),
    ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 3e4},
     {"rope_type": "linear", "factor": 2.0, "rope_theta": 3e4}),
    ({"rope_parameters": {kind: {"rope_type": "default", "rope_theta": 7e4} for kind in ("full_attention", "sliding_attention")}},
     {"rope_type": "default", "rope_theta": 7e4}),
])  # fmt: skip
def test_what_rope_objects_say(changes, like, imported, close, language_model, tmp_path):
    """Wherever a config has the base, it is read as transformers reads it."""
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, rope_parameters=like)).save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps({**config, **changes}))
    found = json.loads(pathlib.Path(imported(tmp_path / "source"), "config.json").read_text())
    assert found["rope_theta"] == like["rope_theta"]
    nested = "full_attention" in changes.get("rope_parameters", {})  # transformers ignores a Llama's layer types
    if nested:
        path.write_text(json.dumps({**config, "rope_parameters": like}))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "source", attn_implementation="eager").eval()
    tokens = torch.randint(0, 67, (2, 90))
    with torch.no_grad():
        close(language_model(str(tmp_path / "run"), "float32").forward(tokens), model(tokens).logits, TOLERANCE, "logits")


@pytest.mark.parametrize(("changes", "words"), [
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}}, ["rope_scaling", "mscale"]),
    ({"rope_scaling": {"rope_type": "default", "factor": 8.0}}, ["rope_scaling", "factor"]),
    ({"rope_scaling": {**YARN, "factor": 0.5}}, ["yarn", "1 or more"]),
    ({"rope_scaling": {**YARN, "beta_fast": 0.25}}, ["beta_fast", "beta_slow"]),
    ({"rope_scaling": {**YARN, "original_max_position_embeddings": 0}}, ["original_max_position_embeddings"]),
    ({"rope_scaling": {**YARN, "attention_factor": 0}}, ["attention_factor"]),
    ({"rope_scaling": {**YARN, "factor": None}, "max_position_embeddings": None}, ["max_position_embeddings"]),
    ({"rope_parameters": {"rope_type": "default", "rope_tehta": 1e6}}, ["rope_parameters", "rope_tehta", "did you mean"]),
    ({"rope_scaling": {"type": "linear", "rope_type": "default"}}, ["linear", "default"]),
    ({"rope_scaling": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 1e4}, ["rope_theta", "10000"]),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}, ["different things"]),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}}, ["types of layers"]),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "rope_theta": 1e4}}, ["although"]),
])  # fmt: skip
def test_what_rope_objects_may_not_say(changes, words, refused, tmp_path):
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "config.json"
    config = json.loads(path.read_text())
    del config["rope_parameters"]
    path.write_text(json.dumps({**config, **changes}))
    line = refused("import", tmp_path / "source", "--out", tmp_path / "none")
    assert all(word in line for word in words), line


@pytest.mark.parametrize("name", [name for name in MODELS if not name.endswith("partly")])  # a family of its own, which is not written
def test_exported_models_are_the_same_in_transformers(name, imported, cortado, close, tmp_path):
    model, _ = make_model(name)
    model.save_pretrained(tmp_path / "source")
    done = cortado("export", imported(tmp_path / "source"), "--out", tmp_path / "back")
    assert done.returncode == 0, done.stderr
    back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", attn_implementation="eager").eval()
    # Without windows a Mistral is a Llama, and a Phi-3 is a Mistral in more tensors.
    assert type(back) is type(model) or name in ("mistral_full", "phi3", "phi3_long")
    weights = back.state_dict()
    for key, weight in model.state_dict().items():
        if name.startswith("granite") and key == "model.norm.weight":  # the logits' divisor is in it
            weight = weight / model.config.logits_scaling
        if not name.startswith("phi3"):
            assert torch.allclose(weights[key], weight, atol=1e-6), key
    tokens = torch.randint(0, 67, (1, 50))
    with torch.no_grad():
        close(back(tokens).logits, model(tokens).logits, 2e-5, "logits")


def test_the_context_chooses_longrope_s_factors(imported, language_model, close, refused, tmp_path):
    """transformers chooses by the text's length; here the context that is wanted chooses for all texts."""
    model, _ = make_model("phi3_long")
    model.save_pretrained(tmp_path / "source")
    long = language_model(imported(tmp_path / "source", name="long"), "float32")
    short = language_model(imported(tmp_path / "source", "--context", 16, name="short"), "float32")
    for length, right, wrong in [(16, short, long), (17, long, short)]:
        tokens = torch.randint(0, 67, (2, length))
        with torch.no_grad():
            expected = model(tokens).logits
        close(right.forward(tokens), expected, TOLERANCE, "logits")
        assert (wrong.forward(tokens) - expected).norm() > 0.1 * expected.norm()
    plain, _ = make_model("phi3")
    plain.save_pretrained(tmp_path / "plain")
    assert "longrope" in refused("import", tmp_path / "plain", "--out", tmp_path / "none", "--context", 16)


@pytest.mark.parametrize(("name", "words"), [("phi3_partly", "a part of a head"), ("qwen3_moe", "feed-forward other than"), ("olmo2", "norms before their branches")])
def test_what_is_not_exported(name, words, imported, refused, tmp_path):
    model, _ = make_model(name)
    model.save_pretrained(tmp_path / "source")
    assert words in refused("export", imported(tmp_path / "source"), "--out", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_shards_and_types(imported, language_model, close, tmp_path, refused):
    model, _ = make_model("gemma2")
    model = model.to(torch.bfloat16)
    model.save_pretrained(tmp_path / "source", max_shard_size="40KB")
    assert len(list((tmp_path / "source").glob("*.safetensors"))) > 2
    run = imported(tmp_path / "source")
    # Reads the model again: converting it back would keep buffers that bfloat16 rounded.
    eager = {"dtype": torch.float32, "attn_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "source", **eager).eval()
    exact = language_model(run, "float32")
    check(model, exact, close)
    tokens = torch.randint(0, 67, (1, 30))
    for dtype, tolerance in [("bfloat16", 0.1), ("float16", 0.02)]:
        ours = language_model(run, dtype)
        assert all(str(weight.dtype) == f"torch.{dtype}" for weight in ours.parameters().values())
        close(ours.forward(tokens), exact.forward(tokens), tolerance, dtype)
    shorter = imported(tmp_path / "source", "--dtype", "float16", name="short")
    close(language_model(shorter, "float32").forward(tokens), exact.forward(tokens), 0.02, "stored in float16")
    assert "in use" in refused("import", tmp_path / "source", "--out", run)
    sorted((tmp_path / "source").glob("*.safetensors"))[1].unlink()
    assert "lacks the shard model-00002" in refused("import", tmp_path / "source", "--out", tmp_path / "none")
    assert not any((tmp_path / "none").glob("*"))


def test_what_cannot_be_imported_leaves_nothing(refused, tmp_path):
    """A tokenizer that does not fit the weights, a type that is not read."""
    model, _ = make_model("llama2")
    source = tmp_path / "source"
    model.save_pretrained(source)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({chr(0x100 + i): i for i in range(70)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(source / "tokenizer.json"))
    assert "the tokenizer has 70 tokens, the model only 67" in refused("import", source, "--out", tmp_path / "out")
    (source / "tokenizer.json").unlink()
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes().replace(b'"F32"', b'"F8X"', 1))
    line = refused("import", source, "--out", tmp_path / "out")
    assert 'unknown type "F8X"; supported are F64, F32' in line and "damaged" not in line
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_ctrl_c_leaves_nothing(program, smollm2_file, tmp_path):
    with subprocess.Popen([str(program), "import", str(smollm2_file), "--out", str(tmp_path / "deep" / "out")], stderr=subprocess.PIPE) as process:
        wait_until(lambda: any(tmp_path.glob("deep/.out.*")), process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and errors.count(b"\n") == 1, errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name, (_, architecture, _) in MODELS.items() if architecture])
def test_a_gguf_file(name, imported, language_model, close, tmp_path):
    model, architecture = make_model(name)
    write_gguf(tmp_path / "model.gguf", model, architecture)
    run = imported(tmp_path / "model.gguf")
    check(model, language_model(run, "float32"), close)
    model.save_pretrained(tmp_path / "source")
    whole = imported(tmp_path / "source", name="whole")
    positions = [json.loads(pathlib.Path(folder, "config.json").read_text()).get("rope_scaling") for folder in (run, whole)]
    assert positions[0] == positions[1]  # Llama 3's, too, which a GGUF file only has as numbers


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_a_gguf_file_in_blocks(kind, imported, language_model, close, tmp_path):
    torch.manual_seed(1)
    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 96}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval()
    write_gguf(tmp_path / "model.gguf", model, "llama", gguf.GGMLQuantizationType[kind])
    check(model, language_model(imported(tmp_path / "model.gguf"), "float32"), close)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4"])
def test_every_bit_of_a_block(kind, language_model, tmp_path):
    """Random bytes are decoded as llama.cpp's own package decodes them."""
    kind = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(kind)
    data = random.integers(0, 256, (40, 8 * size), dtype=np.uint8)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = gguf.quants.dequantize(data.view({1: np.float16, 0: np.float32}.get(kind, np.uint8)), kind)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("x", data, raw_shape=data.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours = torch.classes.cortado.Gguf(str(tmp_path / "x.gguf")).tensor("x").float().numpy()
    assert ours.shape == (40, 8 * values)
    finite = np.isfinite(expected)
    assert finite.mean() > 0.5 and (np.isfinite(ours) == finite).all()
    np.testing.assert_allclose(ours[finite], expected[finite].astype(np.float32), rtol=1e-5, atol=1e-3)


@pytest.mark.slow
def test_smollm2(smollm2, smollm2_file, language_model, close):
    """The real model, against transformers' with the weights that llama.cpp's own package reads."""
    model = read_llama(smollm2_file)
    ours = language_model(str(smollm2), "float32")
    tokens = torch.randint(0, 49152, (1, 200))
    with torch.no_grad():
        close(ours.forward(tokens), model(tokens).logits, TOLERANCE, "logits")
        written = model.generate(tokens[:, :40], do_sample=False, max_new_tokens=50, min_new_tokens=50)
    assert torch.equal(greedy(ours, tokens[:, :40], 50), written[:, 40:])


@pytest.mark.parametrize("mechanism", [pytest.param(name, marks=pytest.mark.mechanism(name)) for name in ("lolcats", "macchiato")])
@pytest.mark.slow
def test_what_was_learned_of_smollm2_fits_it(mechanism, smollm2, cortado, root, tmp_path):
    learned = root / "data" / "smollm2" / f"{mechanism}.safetensors"
    assert cortado("linearize", smollm2, "--from", learned, "--out", tmp_path / "linear").returncode == 0
    expected, found = (evaluate(cortado, root, run, "--weights", "int8") for run in (smollm2, tmp_path / "linear"))
    assert found < 1.2 * expected, (expected, found)  # window 129 alone: 2.6 times


@pytest.mark.slow
def test_smollm2_goes_back_whole(smollm2, cortado, tmp_path):
    """The exported model generates the same text in transformers."""
    done = cortado("export", smollm2, "--out", tmp_path / "back")
    assert done.returncode == 0 and "without a tokenizer" not in done.stdout, done.stderr
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Name a colour."}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        written = model.generate(**prompt, do_sample=False, max_new_tokens=20)[0, prompt["input_ids"].size(1) :]
    ours = cortado("generate", smollm2, "--chat", "--prompt", "Name a colour.", "--temperature", 0, "--n-tokens", 20)
    assert tokenizer.decode(written, skip_special_tokens=True).strip() == ours.stdout.strip() != ""


@pytest.mark.parametrize("weights", quick(["int8"], "int8", "int4"))  # its file's own matrices have 4 bits
def test_narrow_smollm2_is_nearly_the_same_model(weights, smollm2, language_model):
    """The likeliest token and the logits, on what the model itself writes."""
    wide, narrow = language_model(str(smollm2), "float32"), language_model(str(smollm2), weights)
    with torch.no_grad():
        written = greedy(wide, torch.randint(0, 49152, (1, 8)), 200)
        expected, found = wide.forward(written), narrow.forward(written)
    agree = (expected.argmax(-1) == found.argmax(-1)).double().mean().item()
    error = ((found - expected).norm() / expected.norm()).item()
    assert agree >= 0.9 and error <= 0.06, (agree, error)


def evaluate(cortado, root, run, *options):
    """The perplexity of 500 tokens of English."""
    text = root / "data" / "tinyshakespeare.txt"
    done = cortado("eval", run, "--text", text, "--limit", 500, "--context", 250, "--json", *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)[0]["perplexity"]


@pytest.mark.slow
def test_narrow_smollm2_keeps_its_perplexity(cortado, root, smollm2):
    right = evaluate(cortado, root, smollm2)
    for weights, most in (("int8", 0.03), ("int4", 0.03), ("bfloat16", 0.01), ("float16", 0.002)):
        found = evaluate(cortado, root, smollm2, "--weights", weights)
        assert abs(found / right - 1) <= most, (weights, right, found)
