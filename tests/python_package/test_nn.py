"""cortado.nn: every mechanism is a module like PyTorch's own, and computes what the program computes."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from quick import quick

import cortado._roles
import cortado.nn

NAMES = cortado.nn.mechanisms()
# Sizes so small that a short text uses all parts of the mechanism.
SMALL = {"lolcats": {"window": 4}, "lola": {"chunk": 4, "cache": 3}}
FIVE = [name for name in ("latte", "macchiato", "gla", "blurry_window", "lolcats", "lola", "softmax", "mamba2") if name in NAMES]


@pytest.fixture(autouse=True)
def fixture_fresh_compiler():
    """Resets the compiler: all layers share code, and recompilations of one piece of code are limited."""
    torch._dynamo.reset()


def facts(name):
    return cortado.nn._registry()[name]


def layer(name, dtype=torch.float64, **settings):
    torch.manual_seed(3)
    settings = {**SMALL.get(name, {}), **settings}
    return cortado.nn.mixer(name, 24, 4, causal=facts(name)["causal"], dtype=dtype, **settings)


def inputs(*shape, dtype=torch.float64):
    torch.manual_seed(4)
    return torch.randn(*shape, 24, dtype=dtype)


def gradients(module, x, call=None, autocast=False):
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, _ = (module if call is None else call)(x, state=False)
    return y, torch.autograd.grad(y.square().sum(), [x, *module.parameters()], allow_unused=True)


def equal(one, other, tolerance=0.0):
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_reads_in_pieces_and_has_gradients(name):
    module = layer(name)
    x = inputs(2, 13)
    y, slopes = gradients(module, x)
    assert y.shape == x.shape and all(slope is not None and slope.isfinite().all() for slope in slopes)
    if not facts(name)["causal"]:
        assert module(x)[1] is None
        return
    first, state = module(x[:, :5])
    before = {key: tensor.clone() for key, tensor in state.items()}
    second, _ = module(x[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(state[key], before[key]) for key in state)  # it can be continued twice
    one, after = module(x[:, 5:6], state)
    torch.testing.assert_close(one, y[:, 5:6], rtol=1e-9, atol=1e-9)
    assert list(after) == list(state)


@pytest.mark.parametrize("name", [name for name in NAMES if facts(name)["causal"]])
def test_packed_sequences_are_sequences(name):
    module = layer(name)
    x = inputs(1, 17)
    packed, states = module(x, cu_seqlens=torch.tensor([0, 4, 4 + 7, 17]))
    for row, (low, high) in enumerate([(0, 4), (4, 11), (11, 17)]):
        alone, state = module(x[:, low:high])
        torch.testing.assert_close(packed[:, low:high], alone, rtol=1e-9, atol=1e-9)
        follow = inputs(1, 1) + 1
        row_state = {key: tensor[row : row + 1] for key, tensor in states.items()}
        torch.testing.assert_close(module(follow, row_state)[0], module(follow, state)[0], rtol=1e-9, atol=1e-9)


def test_signatures_and_documentation_come_from_the_registry():
    for name in NAMES:
        made = getattr(cortado.nn, cortado.nn.class_name(name))
        assert issubclass(made, torch.nn.Module) and made.__name__ in dir(cortado.nn)
        parameters = inspect.signature(made).parameters
        assert {"self", "dim", "heads", "dtype"} <= set(parameters)
        for setting in facts(name)["settings"]:
            assert setting["name"] in parameters, (name, setting)
            assert f"\n    {setting['name']}" in made.__doc__, (name, setting)


@pytest.mark.mechanism("macchiato")
def test_as_the_readme_has_it():
    window = inspect.signature(cortado.nn.Macchiato).parameters["window"]
    assert window.default == 129 and cortado.nn.Macchiato(8, heads=2).extra_repr() == "8, heads=2"
    y, state = cortado.nn.Macchiato(64, heads=8, latents=128, window=129)(torch.randn(1, 8, 64))
    assert y.shape == (1, 8, 64) and isinstance(state, dict)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_signature_shows_is_what_is_taken(name):
    """A layer with every default given equals the one without: same weights, same numbers. None: set by the sizes."""
    made = getattr(cortado.nn, cortado.nn.class_name(name))
    shown = inspect.signature(made).parameters
    own = {setting["name"]: setting["default"] for setting in facts(name)["settings"]}
    given = {key: it.default for key, it in shown.items() if key in own and key != "heads" and own[key] is not None}
    torch.manual_seed(3)
    expected = made(48, 4, causal=facts(name)["causal"], dtype=torch.float64)
    module = None
    while module is None:
        torch.manual_seed(3)
        try:
            module = made(48, 4, causal=facts(name)["causal"], dtype=torch.float64, **given)
        except ValueError as error:  # the default of a setting that is only allowed with another value of a second setting
            assert "unknown key" in str(error)
            del given[str(error).partition('unknown key "')[2].partition('"')[0]]
    x = torch.randn(1, 9, 48, dtype=torch.float64)
    assert torch.equal(module(x, state=False)[0], expected(x, state=False)[0])


@pytest.mark.parametrize("name", [name for name in NAMES if any(it["name"] == "rotary" for it in facts(name)["settings"])])
def test_rotary_is_what_is_said(name):
    x = inputs(1, 9)
    with_it, without, unsaid = (layer(name, **options)(x, state=False)[0] for options in ({"rotary": True}, {"rotary": False}, {}))
    shown = inspect.signature(getattr(cortado.nn, cortado.nn.class_name(name))).parameters["rotary"].default
    assert torch.equal(unsaid, with_it if shown else without) and not torch.allclose(with_it, without)
    other = layer(name, rotary=True, rope_theta=10.0)(x, state=False)[0]
    assert not torch.allclose(other, with_it)
    with pytest.raises(ValueError, match="give rotary=True"):
        layer(name, rotary=False, rope_theta=10.0)


def test_importing_and_asking_draws_nothing():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    cortado.nn._registry.__wrapped__()
    inspect.signature(cortado.nn.GLA)
    for name in NAMES:
        cortado.nn.mixer(name, 24, 4, causal=facts(name)["causal"], device="meta")
    with torch.device("meta"):
        cortado.nn.mixer(NAMES[0], 24, 4, causal=facts(NAMES[0])["causal"])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_copies_are_independent_and_equal(name, tmp_path):
    module = layer(name, torch.float32)
    x = inputs(2, 9, dtype=torch.float32)
    expected = module(x)[0]
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    others = [copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(file, weights_only=False)]
    fresh = layer(name, torch.float32)
    with torch.no_grad():
        for parameter in fresh.parameters():
            parameter.zero_()
    fresh.load_state_dict(module.state_dict())
    with torch.no_grad():
        next(module.parameters()).add_(1)
    for other in (*others, fresh):
        assert torch.equal(other(x)[0], expected)
        assert type(other) is type(module)


@pytest.mark.parametrize("name", NAMES)
def test_other_types(name):
    module = layer(name, torch.float32)
    x = inputs(2, 9, dtype=torch.float32)
    expected = module(x)[0]
    double = copy.deepcopy(module).double()(x.double())[0]
    assert double.dtype == torch.float64
    scale = expected.abs().max()
    assert (double - expected).abs().max() < 1e-4 * scale
    narrow = copy.deepcopy(module).bfloat16()(x.bfloat16())[0]
    assert narrow.dtype == torch.bfloat16 and (narrow - expected).abs().max() < 0.2 * scale


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_inputs_and_weights_of_two_types_are_told(name, dtype):
    module = layer(name, torch.float32)
    x = inputs(2, 9, dtype=dtype)
    for state in (None, False):
        with pytest.raises(RuntimeError, match=r"^\[part\] the input is (Half|Double), the weights are Float: .*$"):
            module(x, state)
    if dtype == torch.float16:
        with torch.autocast("cpu", torch.bfloat16):
            assert module(x, False)[0].isfinite().all()
    if module.causal:
        state = module(x.float())[1]
        state = {key: value.to(torch.float64) if value.is_floating_point() else value for key, value in state.items()}
        if any(value.is_floating_point() for value in state.values()):
            with pytest.raises(RuntimeError, match=r"^\[state\] .* is Double .*, expected 2 rows of Float$"):
                module(x.float(), state)


@pytest.mark.parametrize("name", NAMES)
def test_autocast(name):
    module = layer(name, torch.float32)
    x = inputs(2, 9, dtype=torch.float32)
    plain, slopes = gradients(module, x)
    narrow, found = gradients(module, x, autocast=True)
    assert narrow.dtype == torch.bfloat16
    assert 0 < (narrow - plain).abs().max() < 0.2 * plain.abs().max()
    assert all(slope.dtype == torch.float32 and slope.isfinite().all() for slope in found)
    assert torch.nn.functional.cosine_similarity(found[0].flatten(), slopes[0].flatten(), dim=0) > 0.8


@pytest.mark.parametrize("name", NAMES)
def test_traced_it_gives_what_it_gives(name):
    module = layer(name)
    x = inputs(2, 9)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    y, slopes = gradients(module, x)
    found, others = gradients(module, x, compiled)
    equal([y], [found], 1e-12)
    equal(slopes, others, 1e-12)


@pytest.mark.parametrize("name", quick(FIVE[:1], *FIVE))
def test_compiled_with_other_layers_and_a_state(name):
    module = layer(name, torch.float32)
    model = torch.nn.ModuleList([torch.nn.Linear(24, 24), module])

    def step(x, state):
        y, state = model[1](torch.nn.functional.gelu(model[0](x)), state)
        return y.tanh(), state

    # How large LoLA's state becomes depends on the tokens: its call breaks the graph.
    compiled = torch.compile(step, fullgraph=name != "lola")
    x = inputs(2, 12, dtype=torch.float32)
    with torch.no_grad():
        state = other = module.zero_state(2)
        for piece in (x[:, :7], x[:, 7:8], x[:, 8:]):
            y, state = step(piece, state)
            found, other = compiled(piece, other)
            torch.testing.assert_close(found, y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", quick(FIVE[:1], *FIVE))
def test_exported_for_inference(name):
    module = layer(name).eval()
    x = inputs(2, 9)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, x):
            return self.inner(x, state=False)[0]

    with torch.no_grad():
        program = torch.export.export(Layer(), (x,))
        torch.testing.assert_close(program.module()(x), module(x)[0], rtol=1e-12, atol=1e-12)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        torch.testing.assert_close(torch.export.load(file).module()(x), module(x)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", FIVE)
def test_gradient_checkpointing(name, reentrant):
    module = layer(name)
    x = inputs(2, 9)

    def call(x, state):
        return torch.utils.checkpoint.checkpoint(lambda y: module(y, state=False)[0], x, use_reentrant=reentrant), None

    if reentrant:  # torch.autograd.grad is not for it
        seed = x.clone().requires_grad_()
        call(seed, False)[0].square().sum().backward()
        equal([seed.grad, *(p.grad for p in module.parameters())], gradients(module, x)[1], 1e-12)
    else:
        equal(gradients(module, x, call)[1], gradients(module, x)[1], 1e-12)


@pytest.mark.parametrize("name", FIVE)
def test_hooks_see_what_goes_through(name):
    module = layer(name)
    seen = {}
    module.register_forward_pre_hook(lambda _, arguments: seen.update(x=arguments[0]))
    module.register_forward_hook(lambda _, arguments, results: seen.update(y=results[0]))
    module.register_full_backward_hook(lambda _, before, after: seen.update(before=before[0], after=after[0]))
    x = inputs(1, 5).requires_grad_()
    y, _ = module(x, state=False)
    y.sum().backward()
    assert torch.equal(seen["x"], x) and torch.equal(seen["y"], y)
    assert torch.equal(seen["before"], x.grad) and torch.equal(seen["after"], torch.ones_like(y))


def test_states_have_gradients_too():
    module = layer("gla")
    x = inputs(1, 8)
    _, state = module(x[:, :5])
    given = {key: tensor.detach().requires_grad_(tensor.is_floating_point()) for key, tensor in state.items()}
    y, _ = module(x[:, 5:], given)
    slopes = torch.autograd.grad(y.sum(), [t for t in given.values() if t.requires_grad])
    assert all(slope.abs().max() > 0 for slope in slopes)


REFUSED = [
    (lambda: cortado.nn.Latte(64, heads=4, latent=8), ValueError, "latent"),
    (lambda: cortado.nn.SlidingWindow(64, heads=4, window=-2), ValueError, "window"),
    (lambda: cortado.nn.Latte(64, heads=5), ValueError, "heads"),
    (lambda: cortado.nn.Latte(64, heads="four"), ValueError, "heads"),
    (lambda: cortado.nn.Latte(), TypeError, "dim"),
    (lambda: cortado.nn.GLA(8, heads=2, rotary=True), ValueError, "rotary"),
    (lambda: cortado.nn.GLA(8, heads=2)(torch.ones(1, 2, 8).numpy()), TypeError, "x must be a tensor, got ndarray"),
    (lambda: cortado.nn.GLA(8, heads=2)(torch.ones(1, 2, 8), cu_seqlens=[0, 2]), TypeError, "cu_seqlens must be a tensor"),
    (lambda: cortado.nn.mixer("lattes", 8), ValueError, "lattes"),
    (lambda: cortado.nn.Mixer(8), TypeError, "base of all"),
    (lambda: cortado.nn.Lattes, AttributeError, "Lattes"),
    (lambda: cortado.nn.Latte(8, heads=2, latents=4)(torch.ones(1, 2, 9)), ValueError, r"\[B, T, 8\]"),
    (lambda: cortado.nn.Latte(8, heads=2, latents=4)(torch.ones(2, 8)), ValueError, r"\[B, T, 8\]"),
    (lambda: cortado.nn.Latte(8, heads=2, latents=4)(torch.ones(1, 2, 8, dtype=torch.int64)), ValueError, "int64"),
    (lambda: cortado.nn.Latte(8, heads=2, latents=4)(torch.ones(1, 2, 8, dtype=torch.float64)), RuntimeError, "input is Double"),
    (lambda: cortado.nn.Latte(8, heads=2, latents=4)(torch.ones(2, 2, 8), {}), ValueError, "state"),
    (lambda: cortado.nn.GLA(8, heads=2)(torch.ones(1, 4, 8), cu_seqlens=torch.tensor([0, 5])), RuntimeError, "cu_seqlens"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_wrong_is_said_in_one_line(number):
    call, kind, word = REFUSED[number]
    with pytest.raises(kind, match=word) as caught:
        call()
    if kind is ValueError:
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_weight_decay_leaves_what_is_no_map(name):
    """A rate times decay of 1 zeroes the decayed weights: matrices and embeddings, but not gains or dynamics."""
    module = torch.nn.Sequential(torch.nn.Embedding(5, 24), torch.nn.Linear(24, 24), torch.nn.LayerNorm(24))
    module.add_module("mixer", layer(name))
    frozen = module[1].bias.requires_grad_(False)
    groups = cortado.parameter_groups(module, weight_decay=1.0)
    known = {id(parameter): group["role"] for group in groups for parameter in group["params"]}
    assert len(known) == len(list(module.parameters())) - 1 and id(frozen) not in known
    assert [known[id(p)] for p in (module[0].weight, module[1].weight, module[2].weight)] == ["embedding", "matrix", "gain"]
    assert set(module.mixer.roles) == {name for name, _ in module.mixer.named_parameters()}
    before = {key: value.detach().clone() for key, value in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW(groups, lr=1.0).step()
    for key, parameter in module.named_parameters():
        decayed = known.get(id(parameter)) in ("matrix", "embedding")
        assert not parameter.any() if decayed else torch.equal(parameter, before[key]), key


def test_roles_of_what_others_put_in_its_place():
    """Groups cover peft's adapters, compiled modules, and parameters that other code marks."""
    name = next(name for name in ("mamba", "h3", "rwkv6") if name in NAMES)
    peft = pytest.importorskip("peft")
    target = next(key for key, inner in layer(name).named_modules() if isinstance(inner, torch.nn.Linear))
    module = peft.get_peft_model(torch.nn.ModuleDict({"mixer": layer(name)}), peft.LoraConfig(target_modules=["mixer." + target]))
    roles = cortado._roles.parameter_roles(torch.compile(module))
    told = layer(name).roles
    for key, role in told.items():
        place = key.replace(target + ".", target + ".base_layer.") if key.startswith(target + ".") else key
        assert roles[f"_orig_mod.base_model.model.mixer.{place}"] == role
    assert "dynamics" in told.values() and sum("lora_" in key for key in roles) == 2
    assert all(role == "matrix" for key, role in roles.items() if "lora_" in key)
    other = torch.nn.Linear(2, 2)
    other.weight._no_weight_decay = True
    assert cortado._roles.parameter_roles(other) == {"weight": "dynamics", "bias": "gain"}
