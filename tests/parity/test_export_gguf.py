"""`cortado export --gguf`: what our reader, the gguf package and transformers find in the files. bench/peers/written_gguf.py asks llama.cpp."""

import json
import random
import signal
import subprocess

import gguf
import numpy as np
import pytest
import torch
import transformers
from chat_templates import CHATML
from gguf_written import LINEAR, WRITTEN, linear_model
from linear_models import model_of
from pretrained_models import SIZES, make_model
from safetensors import safe_open
from safetensors.torch import save_file
from test_import_linear import needs
from test_tokenizers import SPECIAL, byte_level_tokenizer, metaspace_tokenizer, random_line
from until import wait_until

KINDS = {"f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0", "q4_1": "Q4_1"}
# Those that transformers opens, with the settings that it does not read from a file. It ignores Llama 3's factors.
TRANSFORMERS = {
    "llama2": {},
    "mistral_full": {},
    "qwen2": {},
    "qwen3": {"head_dim": 128},
    "gemma2": {"head_dim": 256, "query_pre_attn_scalar": 256},
    "gemma3_text": {"head_dim": 256, "query_pre_attn_scalar": 256},
}
REFUSED = {
    "mistral": "windows in llama",
    "qwen2_sliding": "windows in qwen2",
    "qwen3_sliding": "biases in the attention of qwen3",
    "gemma2_scaled": "scale of scores in gemma2",
    "gemma3_text_stretched": "scale of scores in gemma3",
    "smollm3_marked": "biases",
    "phi3_partly": "a part of a head",
}


@pytest.fixture
def written(cortado, tmp_path):
    """written(model or name, *options) -> the run and the file."""

    def write(model, *options):
        if isinstance(model, str):
            model, _ = make_model(model)
        if not (tmp_path / "source").exists():
            model.save_pretrained(tmp_path / "source")
            assert cortado("import", tmp_path / "source", "--out", tmp_path / "run").returncode == 0
        path = tmp_path / f"model{len(list(tmp_path.glob('*.gguf')))}.gguf"
        done = cortado("export", tmp_path / "run", "--gguf", path, *options)
        assert done.returncode == 0, done.stderr
        assert "without a tokenizer: the run has none" in done.stdout
        return tmp_path / "run", path

    return write


@pytest.fixture
def opened(cortado, mixer, tmp_path):
    """opened(path) -> our model, from a run or a GGUF file."""

    def open_model(path):
        if path.suffix == ".gguf":
            done = cortado("import", path, "--out", tmp_path / path.stem)
            assert done.returncode == 0, done.stderr
            path = tmp_path / path.stem
        return torch.classes.cortado.LanguageModel(str(path), "float32", "")

    return open_model


def field(reader, key):
    return reader.get_field(key).contents()


def tensors(path):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def numbers(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


@pytest.mark.parametrize("name", WRITTEN)
def test_our_reader_finds_the_same_model(name, written, opened):
    run, path = written(name)
    tokens = torch.randint(0, 67, (2, 70))
    assert torch.equal(opened(path).forward(tokens), opened(run).forward(tokens))
    reader = gguf.GGUFReader(path)
    assert field(reader, "general.architecture") == WRITTEN[name]
    assert field(reader, f"{WRITTEN[name]}.vocab_size") == 67 and field(reader, "tokenizer.ggml.model") == "no_vocab"


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_finds_the_same_model(name, written, close):
    model, _ = make_model(name, TRANSFORMERS[name])
    _, path = written(model)
    back = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, attn_implementation="eager").eval()
    assert type(back) is type(model) or name == "mistral_full", type(back)
    tokens = torch.randint(0, 67, (2, 50))
    with torch.no_grad():
        close(back(tokens).logits, model(tokens).logits, 2e-5, "logits")


@pytest.fixture(autouse=True)
def seeded():
    """Seeds what transformers draws when it makes a model."""
    torch.manual_seed(3)


@pytest.mark.parametrize("name", [needs(name) for name in LINEAR])
def test_linear_models(name, written, opened, close):
    """A goes through a logarithm, so the weights are equal to the last bits. Those of Falcon-H1 and MiniMax-01 have taken up factors."""
    run, path = written(linear_model(name))
    ours, back = opened(run), opened(path)
    if not name.startswith(("falcon_h1", "minimax_wide")):
        assert ours.parameters().keys() == back.parameters().keys()
        for key, weight in ours.parameters().items():
            close(back.parameters()[key], weight, 1e-6 if "a_log" in key else 0, key)
    tokens = torch.randint(0, 67, (2, 40))
    close(back.forward(tokens), ours.forward(tokens), 1e-5, "logits")
    assert field(gguf.GGUFReader(path), "general.architecture") == LINEAR[name][0]


@pytest.mark.parametrize("name", [needs("mamba"), needs("qwen3_moe")])
def test_transformers_finds_the_same_linear_model(name, written, close):
    model = linear_model(name, {"head_dim": 128, "moe_intermediate_size": 768} if name == "qwen3_moe" else None)
    _, path = written(model)
    back = type(model).from_pretrained(path.parent, gguf_file=path.name).eval()
    tokens = torch.randint(0, 67, (2, 50))
    with torch.no_grad():
        close(back(tokens).logits, model(tokens).logits, 2e-5, "logits")


def special_blocks():
    """A Llama whose matrices have blocks of zeros, of equal numbers, with ties of both signs, and with tiny numbers."""
    torch.manual_seed(5)
    settings = {**SIZES, "hidden_size": 64, "head_dim": 16, "tie_word_embeddings": False}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()
    with torch.no_grad():
        rows = model.model.layers[0].mlp.up_proj.weight
        rows[0] = 0
        rows[1] = 0.7
        rows[2] = torch.tensor([1.0, -1.0]).repeat(32)
        rows[3] = torch.tensor([-2.0, 2.0]).repeat(32)
        rows[4] = torch.randn(64) * 1e-9
        rows[5] = torch.arange(64) / 127
        rows[6, 3] = 3e4
        rows[7] = torch.arange(64) + 0.5  # halves are rounded away from zero
        rows[7, ::32] = -127
    return model


@pytest.mark.parametrize("kind", list(KINDS))
def test_blocks_are_those_of_the_gguf_package(kind, written):
    model = special_blocks()
    plain, file = (tensors(written(model, "--type", each)[1]) for each in ("f32", kind))
    wanted = gguf.GGMLQuantizationType[KINDS[kind]]
    narrow = gguf.GGMLQuantizationType.F16
    assert file.keys() == plain.keys()
    for name, tensor in file.items():
        values = numbers(plain[name])
        if values.ndim < 2:
            expected = gguf.GGMLQuantizationType.F32
        elif kind.startswith("q") and values.shape[-1] % 32:
            expected = narrow
        else:
            expected = gguf.GGMLQuantizationType.Q8_0 if kind.startswith("q4") and name == "output.weight" else wanted
        assert tensor.tensor_type == expected, name
        assert np.array_equal(tensor.data, gguf.quants.quantize(values, expected).reshape(tensor.data.shape)), name
    assert {"ffn_down.weight", "ffn_up.weight"} == {name[6:] for name in file if name.startswith("blk.0.ffn") and file[name].data.ndim > 1} - {"ffn_gate.weight"}


@pytest.mark.parametrize(("kind", "tolerance"), [("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 3e-2), ("q4_1", 0.3), ("q4_0", 0.3)])
def test_logits_within_the_rounding(kind, tolerance, written, opened):
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SIZES, "hidden_size": 64, "initializer_range": 0.05})).eval()
    run, path = written(model, "--type", kind)
    tokens = torch.randint(0, 67, (2, 40))
    right, found = opened(run).forward(tokens), opened(path).forward(tokens)
    assert 0 < (found - right).norm() < tolerance * right.norm()
    reader = gguf.GGUFReader(path)
    kinds = {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2, "q4_1": 3}
    assert field(reader, "general.file_type") == kinds[kind]
    assert ("general.quantization_version" in reader.fields) == kind.startswith("q")


def test_a_tied_head_has_8_bits(written):
    settings = {**SIZES, "hidden_size": 64, "tie_word_embeddings": True}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    file = tensors(written(model, "--type", "q4_0")[1])
    assert file["token_embd.weight"].tensor_type == gguf.GGMLQuantizationType.Q8_0 and "output.weight" not in file


@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_has_not_is_refused(name, cortado, refused, tmp_path):
    model, _ = make_model(name)
    model.save_pretrained(tmp_path / "source")
    assert cortado("import", tmp_path / "source", "--out", tmp_path / "run").returncode == 0
    assert REFUSED[name] in refused("export", tmp_path / "run", "--gguf", tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


@pytest.fixture(scope="module")
def lines(root):
    """500 lines that tokenizers get wrong. Marks in front of spaces and behind special tokens are a file's own rule."""
    rng, sources = random.Random(3), (root / "data/tinyshakespeare.txt").read_text()[:20000].splitlines()
    drawn = ["", " ", "  two", *(random_line(rng, sources) for _ in range(497))]
    left_out = (*SPECIAL, "<s>", "</s>", "<unk>", "<0x")
    return [line for line in drawn if not line.startswith((" ", "\u2581")) and not any(mark in line for mark in left_out)]


@pytest.fixture
def with_tokenizer(cortado, tmp_path):
    """with_tokenizer(tokenizer, config of it) -> what the command says, and the file. The model has rows without tokens."""

    def write(tokenizer, **config):
        settings = {**SIZES, "vocab_size": tokenizer.get_vocab_size() + 13, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16}
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).save_pretrained(tmp_path / "source")
        (tmp_path / "source" / "tokenizer.json").write_text(tokenizer.to_str())
        (tmp_path / "source" / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
        assert cortado("import", tmp_path / "source", "--out", tmp_path / "run").returncode == 0
        done = cortado("export", tmp_path / "run", "--gguf", tmp_path / "model.gguf")
        assert done.returncode == 0, done.stderr
        return done.stdout, tmp_path / "model.gguf"

    return write


@pytest.mark.parametrize(
    ("name", "pre"),
    [("gpt2", "gpt-2"), ("smollm", "smollm"), ("qwen2", "qwen2"), ("qwen3_5", "qwen35"), ("llama3", "llama-bpe"), ("prefix", "gpt-2"),
     ("llama2", None), ("mistral", None), ("gemma", None)],
)  # fmt: skip
def test_the_tokenizer_goes_along(name, pre, with_tokenizer, lines, mixer, tmp_path):
    theirs = byte_level_tokenizer(name, tuple(lines)) if pre else metaspace_tokenizer(name, lines)
    end = SPECIAL[2] if pre else "</s>"
    said, path = with_tokenizer(theirs, eos_token=end, bos_token=SPECIAL[1] if pre else "<s>", chat_template=CHATML if pre else None)
    assert "without" not in said, said
    ours, back = torch.classes.cortado.Tokenizer(str(tmp_path / "run/tokenizer"), "native"), torch.classes.cortado.Tokenizer(str(path), "gguf")
    assert back.encode(lines) == ours.encode(lines)
    assert [back.encode_document(line) for line in lines] == [ours.encode_document(line) for line in lines]
    reader = gguf.GGUFReader(path)
    rows = theirs.get_vocab_size() + 13
    tokens, types = field(reader, "tokenizer.ggml.tokens"), field(reader, "tokenizer.ggml.token_type")
    assert len(tokens) == len(types) == rows == back.vocabulary() and len(set(tokens)) == rows
    assert types[tokens.index(end)] == gguf.TokenType.CONTROL and types[-13:] == [gguf.TokenType.UNUSED] * 13
    assert field(reader, "tokenizer.ggml.model") == ("gpt2" if pre else "llama")
    assert field(reader, "tokenizer.ggml.eos_token_id") == tokens.index(end)
    if pre:
        assert field(reader, "tokenizer.ggml.pre") == pre
        assert back.chat_template() == ours.chat_template() == CHATML == field(reader, "tokenizer.chat_template")


@pytest.mark.parametrize("name", ["words", "previous", "first"])
def test_tokenizers_that_llama_cpp_has_not(name, with_tokenizer, lines):
    theirs = metaspace_tokenizer(name, lines) if name == "first" else byte_level_tokenizer(name, tuple(lines))
    said, path = with_tokenizer(theirs)
    assert "without a tokenizer: llama.cpp's tokenizers have no such steps before the merges" in said and said.count("\n") == 1
    assert field(gguf.GGUFReader(path), "tokenizer.ggml.model") == "no_vocab"


LINEAR_REFUSED = {
    "mamba_wide": 'another "expand"',
    "mamba2_wide": '"bias"',
    "bamba": "a part of each head",
    "qwen3_5_text": "heads of keys and values differ",
    "qwen3_next_wide": "heads of keys and values differ",
    "lfm2_wide": "stretched positions",
    "falcon_h1_wide": "stretched positions",
    "falcon_h1_gated": '"recurrence"',
    "nemotron_h_wide": '"bias"',
    "nemotron_h_experts": "experts and other feed-forwards",
    "kimi_linear": "different numbers of heads",
    "kimi_linear_wide": "different numbers of heads",
    "minimax_wide": "stretched positions",
    "gpt_oss_wide": "gpt-oss without biases",
    "rwkv": "layers of rwkv4",
}


@pytest.mark.parametrize("name", [needs(name) for name in LINEAR_REFUSED])
def test_what_llama_cpp_has_not_of_linear_models(name, cortado, refused, monkeypatch, tmp_path):
    model_of(name, monkeypatch).save_pretrained(tmp_path / "source")
    assert cortado("import", tmp_path / "source", "--out", tmp_path / "run").returncode == 0
    assert LINEAR_REFUSED[name] in refused("export", tmp_path / "run", "--gguf", tmp_path / "model.gguf")
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.mechanism("mamba")
def test_norms_that_llama_cpp_gives_no_weights(cortado, refused, tmp_path):
    """FalconMamba's selection has norms without weights; ours may have learned some."""
    linear_model("falcon_mamba").save_pretrained(tmp_path / "source")
    assert cortado("import", tmp_path / "source", "--out", tmp_path / "run").returncode == 0
    with safe_open(tmp_path / "run" / "last.safetensors", "pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}
        metadata = {key: value for key, value in file.metadata().items() if key != "checksum"}
    weights["layers.1.mixer.b_norm.weight"] *= 2
    save_file(weights, tmp_path / "run" / "last.safetensors", metadata)
    assert "layers.1.mixer.b_norm.weight learned" in refused("export", tmp_path / "run", "--gguf", tmp_path / "model.gguf")


@pytest.fixture
def trained(cortado, tmp_path):
    """trained(**config) -> a run of two steps, with a tokenizer of characters."""

    def train(**config):
        settings = {"batch": 2, "context": 16, "steps": 2, "warmup": 1, "evaluate_every": 2, "tokenizer": "char"}
        (tmp_path / "config.json").write_text(json.dumps({"dim": 32, "heads": 2, "layers": 2, "training": settings, **config}))
        (tmp_path / "text.txt").write_text("all work and no play\n" * 200)
        done = cortado("train", tmp_path / "config.json", "--data", tmp_path / "text.txt", "--out", tmp_path / "run", "--threads", 1)
        assert done.returncode == 0, done.stderr
        return tmp_path / "run"

    return train


@pytest.mark.mechanism("mamba2")
def test_a_model_that_was_trained_here(trained, cortado, opened, close, tmp_path):
    """Its config leaves most settings to their defaults. llama.cpp has no tokenizer of characters."""
    run = trained(mixer={"mixer": "mamba2", "state": 8}, feed_forward={"type": "none"}, norm_eps=1e-5)
    done = cortado("export", run, "--checkpoint", "last", "--gguf", tmp_path / "model.gguf")
    assert done.returncode == 0 and "without a tokenizer: llama.cpp's tokenizers have no kind like char" in done.stdout, done.stderr
    tokens = torch.randint(0, 10, (2, 20))
    close(opened(tmp_path / "model.gguf").forward(tokens), opened(run).forward(tokens), 1e-5, "logits")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.mechanism(name)) for name in ("macchiato", "latte")])
def test_layers_that_llama_cpp_has_not(name, trained, refused, tmp_path):
    run = trained(mixer={"mixer": name, "latents": 4})
    assert f"no architecture with layers of {name}" in refused("export", run, "--gguf", tmp_path / "model.gguf")


def test_a_model_like_gpt(trained, refused, tmp_path):
    run = trained(mixer={"mixer": "softmax"}, norm="layer", feed_forward={"type": "mlp"})
    assert "no architecture with such softmax layers, norms" in refused("export", run, "--gguf", tmp_path / "model.gguf")


@pytest.mark.mechanism("mamba2")
@pytest.mark.parametrize(
    ("mixer", "more", "words"),
    [({"norm": "before_gate"}, {"norm_eps": 1e-5}, 'mamba2 has no "norm": "before_gate"'), ({}, {}, 'mamba2 has no "norm_eps": 1e-05'),
     ({}, {"norm_eps": 1e-5, "embedding": {"scale": 2.0}}, 'mamba2 has no "embedding"'),
     ({}, {"norm_eps": 1e-5, "feed_forward": {"type": "swiglu"}}, "feed-forward")],
)  # fmt: skip
def test_settings_that_llama_cpp_fixes(mixer, more, words, trained, refused, tmp_path):
    """Among them: all norms have one epsilon, which by default is another one in a mixer than in a model."""
    run = trained(**{"mixer": {"mixer": "mamba2", "state": 8, **mixer}, "feed_forward": {"type": "none"}, **more})
    assert words in refused("export", run, "--gguf", tmp_path / "model.gguf")


def test_ctrl_c_leaves_nothing(program, smollm2, tmp_path):
    with subprocess.Popen([str(program), "export", str(smollm2), "--gguf", str(tmp_path / "model.gguf"), "--type", "q4_1"], stderr=subprocess.PIPE) as process:
        wait_until(lambda: any(tmp_path.iterdir()), process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and errors.count(b"\n") == 1, errors
    assert not list(tmp_path.iterdir())


def test_options_that_do_not_fit(written, refused, tmp_path):
    run, path = written("llama2")
    out = tmp_path / "new"
    for options, words in [
        ([], "--out DIR or --gguf FILE"),
        (["--gguf", out, "--out", out], "one of the two"),
        (["--gguf", path], "exists already"),
        (["--gguf", tmp_path / "none" / "x.gguf"], "none"),
        (["--gguf", out, "--type", "q3_k"], "f32, f16, bf16, q8_0, q4_0, q4_1"),
        (["--gguf", out, "--dtype", "float16"], "--type"),
        (["--gguf", out, "--to-hub-folder"], "--to-hub-folder"),
        (["--out", out, "--type", "q8_0"], "--type"),
        (["--out", out, "--evaluation", path], "--evaluation"),
    ]:
        assert words in refused("export", run, *options), options
        assert not out.exists()
