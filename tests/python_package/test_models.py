"""cortado.load and cortado.models: the program's models as modules that are trained further and given back."""

import copy
import json
import typing

import pytest
import torch
import torch.utils.checkpoint

import cortado.models
import cortado.nn
from cortado._decoder import TOKEN_LOOKS, Looks
from cortado.models import load

TEXT = "The king shall live, and all his men with him. " * 3
MIXERS = [
    {"mixer": "macchiato", "latents": 8, "window": 9}, {"mixer": "softmax"}, {"mixer": "mamba2"},
    {"mixer": "lolcats", "window": 8}, {"mixer": "rwkv4"}, {"mixer": "rwkv7"},
]  # fmt: skip


def test_experts_and_what_lies_before_the_first_block(trained):
    """Rare parts of a model compute as in the program, and are trained further."""
    experts = {"type": "experts", "dim": 16, "experts": 4, "shared": 8}
    run = trained(mixer={"mixer": "gla"}, feed_forward=experts, embedding={"tied": True, "scale": 2.0, "norm": True})
    model = load(run)
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    expected = torch.classes.cortado.LanguageModel(str(run), "float32", "").forward(tokens)
    assert torch.allclose(model(tokens)[0], expected, atol=2e-5)
    model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    assert all(parameter.grad is not None for name, parameter in model.named_parameters() if "experts" not in name)
    assert any(parameter.grad is not None and parameter.grad.any() for name, parameter in model.named_parameters() if "experts" in name)


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda it: it["mixer"])
def test_loaded_it_is_the_programs_model(trained, mixer, cortado, tmp_path):
    run = trained(mixer=mixer)
    model = load(run)
    native = torch.classes.cortado.LanguageModel(str(run), "float32", "")
    assert list(model.state_dict()) and set(model.state_dict()) == set(native.parameters())
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    with torch.no_grad():
        expected = native.forward(tokens)
        logits, state = model(tokens, model.state())
        # The program computes the whole text, for which LoLCATs uses another order than for a piece.
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
        assert torch.equal(model(tokens)[0], expected)
        follow = torch.tensor([[1, 2]])
        pieces, _ = model(follow, state)
        whole, _ = model(torch.cat([tokens, follow], 1))
        torch.testing.assert_close(pieces, whole[:, -2:], rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    for name, weight in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight), name
    ours = model.generate("The king", 40)
    done = cortado("generate", tmp_path / "saved", "--prompt", "The king", "--n-tokens", 40, "--temperature", 0)
    assert done.returncode == 0, done.stderr
    assert ours in done.stdout



def test_trained_further_and_back(run, cortado, tmp_path, root):
    """The loss falls in Python; the program then finds the same loss and continues."""
    model = load(run).train()
    text = (root / "data/tinyshakespeare.txt").read_text()[:20000]
    tokens = torch.tensor(model.tokenizer.encode(text))[: 128 * 65].view(-1, 65)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(30):
        batch = tokens[step % 16 * 8 : step % 16 * 8 + 8]
        loss = model.loss(batch[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
    model.eval().save(tmp_path / "more")
    held = tmp_path / "held.txt"
    held.write_text(text)
    found = []
    for folder in (run, tmp_path / "more"):
        done = cortado("eval", folder, "--text", held, "--json")
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout)[0]["loss"])
    assert found[1] < found[0] - 0.2
    config = json.loads((run / "config.json").read_text())
    done = cortado("train", tmp_path / "more", "--data", held, "--out",
                   tmp_path / "on", "--set", "training.steps=2", "--threads", 1)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert config["dim"] == model.config["dim"]


def test_the_loss_is_torchs_cross_entropy(run):
    model = load(run, dtype=torch.float64)
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    targets = tokens.roll(-1, 1)
    targets[0, -3:] = -1
    logits, _ = model(tokens)
    expected = torch.nn.functional.cross_entropy(logits[0], targets[0], ignore_index=-1)
    found = model.loss(tokens, targets)
    torch.testing.assert_close(found, expected)
    one = torch.autograd.grad(found, list(model.parameters()))
    other = torch.autograd.grad(expected, list(model.parameters()))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


def test_random_models_are_those_of_the_program():
    config = {"vocabulary": 50, "dim": 24, "heads": 4, "layers": [{"mixer": {"mixer": "gla"}, "repeat": 2},
              {"mixer": {"mixer": "softmax"}}], "positions": "rotary", "embedding": {"tied": True}}  # fmt: skip
    torch.manual_seed(7)
    model = cortado.models.LanguageModel(config)
    torch.manual_seed(7)
    other = cortado.models.LanguageModel(config)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert len(model.layers) == 3 and model.config["layers"][0]["repeat"] == 2
    y, state = model(torch.randint(50, (2, 9)), model.state(2))
    assert y.shape == (2, 9, 50) and len(state) == 4


@torch.no_grad()
@pytest.mark.parametrize("mixer", [{"mixer": "macchiato", "window": 5}, {"mixer": "latte"}, {"mixer": "gla"}, {"mixer": "kda"},
                                   {"mixer": "sliding_window", "window": 5}, {"mixer": "softmax"}], ids=str)  # fmt: skip
def test_a_token_of_what_does_not_grow_is_read_nowhere_on_the_host(mixer):
    model = cortado.models.LanguageModel({"vocabulary": 50, "dim": 24, "heads": 4, "layers": 2, "mixer": mixer}).eval()
    token = torch.randint(50, (2, 1))
    _, state = model(torch.randint(50, (2, 9)), model.state(2))
    with Looks() as looks:
        model(token, state)
    assert (looks.count <= TOKEN_LOOKS) == (mixer["mixer"] != "softmax")


def test_generation(run):
    model = load(run)
    tokens = torch.tensor([model.tokenizer.encode("The king"), model.tokenizer.encode("And then")])
    greedy = model.generate(tokens, 12)
    for row in range(2):
        assert torch.equal(model.generate(tokens[row : row + 1], 12)[0], greedy[row])
    drawn = [model.generate(tokens, 12, temperature=1.0, top_k=20, top_p=0.9, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(model.generate(tokens, 12, temperature=0.7, top_k=1, seed=1), greedy)
    assert model.generate(tokens, 0).shape == (2, 0)
    assert model.tokenizer.decode(model.tokenizer.encode(TEXT)) == TEXT


def test_it_stops_where_the_program_stops(run):
    """Generation stops at the tokens that end texts; a finished row is filled up with its end token."""
    model = load(run)
    tokens = torch.tensor([model.tokenizer.encode("The king"), model.tokenizer.encode("And then")])
    free = model.generate(tokens, 12)
    stop = free[0, 4].item()
    first = [row.tolist().index(stop) if stop in row.tolist() else 12 for row in free]
    found = model.generate(tokens, 12, stops=[stop])
    assert found.shape == (2, min(12, max(first) + 1))
    for row, end in enumerate(first):
        assert torch.equal(found[row, : end + 1], free[row, : end + 1]) and (found[row, end:] == stop).all()

    class Ends:
        """The run's tokenizer, with a token that ends texts."""

        stops: typing.ClassVar[list[int]] = [stop]

        def __getattr__(self, name):
            return getattr(tokenizer, name)

    text, tokenizer = model.generate("The king", 12), model.tokenizer
    model.tokenizer = Ends()
    assert model.generate("The king", 12) == tokenizer.decode(free[0, : first[0]].tolist()) != text
    assert model.generate("The king", 12, stops=[]) == text


def test_it_leaves_everything_as_it_was(run):
    """generate restores the modes of all modules, also after an exception, and torch's generator."""
    model = load(run).train()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(11)
    before = torch.get_rng_state()
    tokens = torch.tensor([model.tokenizer.encode("The king")])
    for options in ({}, {"temperature": 1.0, "seed": 3}):
        model.generate(tokens, 4, **options)
        assert torch.equal(torch.get_rng_state(), before) and modes == [module.training for module in model.modules()]
    with pytest.raises(Exception, match="range|vocabulary"):
        model.generate(torch.full((1, 3), 10**6), 4)
    assert modes == [module.training for module in model.modules()]
    load(run)
    load(run, memory=None)
    assert torch.equal(torch.get_rng_state(), before)
    # Without a seed, only torch's own generator decides what is drawn.
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(model.generate(tokens, 12, temperature=1.0))
    assert torch.equal(*drawn) and not torch.equal(torch.get_rng_state(), before)


def test_models_of_another_default_type():
    """All weights get the type, whatever type they are created in."""
    torch.set_default_dtype(torch.float64)
    try:
        for mixer in ("rwkv6", "mamba", "h3", "performer"):
            if mixer in cortado.nn.mechanisms():
                model = cortado.models.LanguageModel({"vocabulary": 50, "dim": 24, "heads": 4, "layers": 1, "mixer": {"mixer": mixer}})
                assert {weight.dtype for weight in model.state_dict().values()} == {torch.float64}
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_memory_on_the_same_weights(trained):
    run = trained(mixer={"mixer": "softmax"})
    exact, window = load(run), load(run, memory={"kind": "window", "window": 8})
    tokens = torch.tensor([exact.tokenizer.encode(TEXT)])
    near, far = exact(tokens)[0], window(tokens)[0]
    torch.testing.assert_close(near[:, :4], far[:, :4], rtol=1e-4, atol=1e-4)
    assert (near - far)[:, 20:].abs().max() > 1e-4


@pytest.mark.mechanism("rwkv7")
def test_layers_that_share_values(trained):
    """RWKV-7's first layer hands its values to the later ones, also under torch.compile and when blocks are computed again."""
    model = load(trained(mixer={"mixer": "rwkv7"}))
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    loss = model.train().loss(tokens[:, :-1], tokens[:, 1:])
    expected = torch.autograd.grad(loss, list(model.parameters()))
    first = dict(zip((name for name, _ in model.named_parameters()), expected))
    assert first["layers.0.mixer.v.weight"].abs().max() > 0 and first["layers.1.mixer.value"].abs().max() > 0
    with torch.no_grad():
        compiled = torch.compile(model.eval(), fullgraph=True)(tokens)[0]
        torch.testing.assert_close(compiled, model(tokens)[0], rtol=1e-4, atol=1e-4)
    for block in model.train().layers:
        block.gradient_checkpointing = True
        block._gradient_checkpointing_func = lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)
    again = torch.autograd.grad(model.loss(tokens[:, :-1], tokens[:, 1:]), list(model.parameters()))
    for a, b in zip(again, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_copied_and_packed(run):
    model = load(run).eval()
    tokens = torch.tensor([model.tokenizer.encode(TEXT)])
    with torch.no_grad():
        expected = model(tokens)[0]
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(tokens)[0], expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(copy.deepcopy(model)(tokens)[0], expected)
        bounds = torch.tensor([0, 30, 47])
        packed = model(tokens[:, :47], None, bounds)[0]
        torch.testing.assert_close(packed[:, 30:], model(tokens[:, 30:47])[0], rtol=1e-4, atol=1e-4)
        program = torch.export.export(model, (tokens,))
        torch.testing.assert_close(program.module()(tokens)[0], expected, rtol=1e-5, atol=1e-5)


def test_what_is_wrong_is_said(run, tmp_path):
    model = load(run)
    for call, kind, word in (
        (lambda: load(tmp_path / "no"), FileNotFoundError, "there is no folder"),
        (lambda: load(tmp_path), ValueError, "config.json"),
        (lambda: load(run, dtype=torch.int8), ValueError, "floating type"),
        (lambda: load(run, memory={"kind": "elephant"}), ValueError, "elephant"),
        (lambda: load(run, memory={"kind": "window", "windows": 8}), ValueError, "windows"),
        (lambda: model(torch.ones(3, dtype=torch.int64)), ValueError, r"\[B, T\]"),
        (lambda: model(torch.ones(1, 3)), ValueError, "int64"),
        (lambda: model(torch.full((1, 3), 10**6)), (RuntimeError, IndexError), "out of range|vocabulary"),
        (lambda: model.loss(torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64)), ValueError, "targets"),
        (lambda: model.generate(torch.ones(1, 0, dtype=torch.int64)), ValueError, "at least one"),
        (lambda: model.generate([1, 2]), TypeError, "must be a tensor, got list"),
        (lambda: model([[1, 2]]), TypeError, "tokens must be a tensor, got list"),
        (lambda: model.generate("x", temperature=-1.0), ValueError, "temperature"),
        (lambda: model.generate("x", top_p=0.0, temperature=1.0), ValueError, "top_p"),
        (lambda: model.generate("x", -1), ValueError, "tokens"),
        (lambda: cortado.models.LanguageModel({"dim": 8}), ValueError, "layers|vocabulary"),
        (lambda: cortado.models.LanguageModel({**model.config, "from_the_future": 1}), ValueError, "from_the_future"),
        (lambda: cortado.models.LanguageModel({**model.config, "mixer": {"mixer": "hyena"}}), ValueError, "hyena"),
    ):
        with pytest.raises(kind, match=word) as caught:
            call()
        assert "\n" not in str(caught.value) or kind is not ValueError, caught.value
    weights = (run / "last.safetensors").read_bytes()
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_bytes((run / "config.json").read_bytes())
    (damaged / "last.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ValueError, match="last.safetensors"):
        load(damaged)
