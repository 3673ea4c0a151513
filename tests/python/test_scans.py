"""gated_scan, delta_scan, dplr_scan and slot_scan against independent formulas in numpy, and as citizens of PyTorch."""

import numpy as np
import pytest
import scans
import torch

ops = torch.ops.cortado
every_case = pytest.mark.parametrize("case", scans.CASES, ids=str)
each_scan = pytest.mark.parametrize("case", scans.named("gated_scan, channel, key", "delta_scan, channel", "dplr_scan, channel", "slot_scan, slot"), ids=str)


def leaves_of(inputs):
    return {name: x for name, x in inputs.items() if x is not None}


@pytest.mark.parametrize("case", scans.CASES + scans.MORE_CASES, ids=str)
def test_formula(case):
    for tokens in (1, scans.T, 67):
        inputs = case.inputs(tokens, state=tokens != scans.T)
        for got, right in zip(case(inputs), case.formula(inputs)):
            np.testing.assert_allclose(got.detach().numpy(), right, rtol=1e-9, atol=1e-11 * max(1.0, np.abs(right).max()))


@every_case
def test_gradients_by_differences_of_the_formula(case):
    """Compares every gradient along a random direction with differences of the numpy formula, through o and S_T."""
    inputs = case.inputs()
    generator = torch.Generator().manual_seed(1)
    outputs = case(inputs)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64) for y in outputs]
    leaves = leaves_of(inputs)
    grads = torch.autograd.grad(outputs, list(leaves.values()), weights)

    def loss(moved):
        return sum((w.numpy() * y).sum() for w, y in zip(weights, case.formula(moved)))

    for (name, x), grad in zip(leaves.items(), grads):
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        step = 1e-5
        ahead, behind = ({**inputs, name: x.detach() + s * direction} for s in (step, -step))
        slope = (loss(ahead) - loss(behind)) / (2 * step)
        assert (grad * direction).sum().item() == pytest.approx(slope, rel=1e-6, abs=1e-7), name


@every_case
def test_gradcheck(case):
    inputs = case.inputs(tokens=5)
    leaves = leaves_of(inputs)

    def run(*values):
        return case({**inputs, **dict(zip(leaves, values))})

    with torch.device("cpu"):  # its own directions, which it draws there
        torch.autograd.gradcheck(run, tuple(leaves.values()), fast_mode=True)


@every_case
def test_opcheck(case):
    positional, keywords = case.split(case.inputs(dtype=torch.float32))
    torch.library.opcheck(case.operator, positional, {**keywords, "scale": 0.7})


@each_scan
def test_opcheck_packed_and_mixed(case):
    positional, keywords = case.split(case.inputs(state=False, dtype=torch.float32))
    one = [x.detach()[:1].requires_grad_() for x in positional]
    state = torch.zeros(3, scans.H, scans.K, scans.V, requires_grad=True)
    bounds = torch.tensor([0, 4, 4, scans.T])
    torch.library.opcheck(case.operator, tuple(one), {**keywords, "initial_state": state, "cu_seqlens": bounds})
    one[0] = one[0].detach().bfloat16().requires_grad_()
    one[2] = one[2].detach().half().requires_grad_()
    torch.library.opcheck(case.operator, tuple(one), keywords)


COMPILED = [f"{scan}, {gate}" for scan in ("gated_scan", "delta_scan") for gate in ("none", "head", "channel")]
COMPILED = [name + (", key" if name.startswith("gated") else "") for name in COMPILED]


@pytest.mark.parametrize("case", scans.named(*COMPILED, "dplr_scan, channel", "slot_scan, slot, shared"), ids=str)
def test_compiles_as_one_graph(case):
    torch.compiler.reset()  # the cases share code, so they would count as its recompilations
    operator, by_position, options = case.operator, len(case.arguments), case.options

    def layer(q, *others):
        o, state = operator(q.sin(), *others[: by_position - 1], initial_state=others[-1], **options)
        return (o * o).sum() + state.sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for tokens in (scans.T, 70):
        inputs = case.inputs(tokens, dtype=torch.float32)
        values = [inputs[name] for name in (*case.arguments, "initial_state")]
        leaves = [x for x in values if x is not None]
        right = torch.autograd.grad(layer(*values), leaves)
        for got, want in zip(torch.autograd.grad(compiled(*values), leaves), right):
            torch.testing.assert_close(got, want)


@each_scan
def test_autocast_accumulates_in_float32(case):
    inputs = case.inputs(tokens=70, dtype=torch.float32)
    leaves = list(leaves_of(inputs).values())
    plain_o, plain_state = case(inputs)
    plain = torch.autograd.grad(plain_o.sum(), leaves)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        o, state = case(inputs)
        grads = torch.autograd.grad(o.sum(), leaves)
    assert o.dtype == state.dtype == torch.float32
    assert torch.equal(o, plain_o) and torch.equal(state, plain_state)
    assert all(torch.equal(got, right) for got, right in zip(grads, plain))

    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        linear = torch.nn.Linear(scans.K, scans.K)
        q = linear(inputs["q"])  # bfloat16, as it comes in a model under autocast
        o, state = case({**inputs, "q": q})
    assert q.dtype == torch.bfloat16 and o.dtype == state.dtype == torch.float32
    o.sum().backward()
    assert linear.weight.grad.dtype == torch.float32 and inputs["initial_state"].grad.dtype == torch.float32


@each_scan
def test_differentiating_twice_says_so(case):
    inputs = case.inputs(tokens=5)
    o, _ = case(inputs)
    (grad,) = torch.autograd.grad(o.pow(2).sum(), inputs["q"], create_graph=True)
    with pytest.raises(RuntimeError, match=rf"{case.scan}_backward\] differentiating twice is not supported"):
        torch.autograd.grad(grad.sum(), inputs[case.arguments[1]])


@each_scan
def test_inference_mode_gives_the_same(case):
    inputs = case.inputs(tokens=20)
    right = case(inputs)
    with torch.inference_mode():
        for got, want in zip(case(inputs), right):
            assert torch.equal(got, want)


X, BETA, NARROW = torch.zeros(2, 16, 4, 8), torch.zeros(2, 16, 4), torch.zeros(2, 16, 4, 5)
SHORT = {"cu_seqlens": torch.tensor([0, 15])}
FLOATS = {"cu_seqlens": torch.tensor([0.0, 16.0])}


@pytest.mark.parametrize(
    ("scan", "arguments", "options", "message"),
    [
        ("gated_scan", (X, X, NARROW[:, :15]), {}, r"\[gated_scan\] expected v of shape \[2, 16, \*, \*\], got \[2, 15, 4, 5\]"),
        ("gated_scan", (X, X, X), {"read": "both"}, r"read must be \"key\" or \"value\""),
        ("gated_scan", (X, X[:, :, :3], X), {}, "the heads of k"),
        ("gated_scan", (X[:1], X[:1], X[:1]), SHORT, "cu_seqlens must end with T = 16, got 15"),
        ("gated_scan", (X[:1], X[:1], X[:1]), FLOATS, "cu_seqlens must be int32 or int64"),
        ("delta_scan", (X, X, NARROW[:, :15], BETA), {}, r"\[delta_scan\] expected v of shape \[2, 16, \*, \*\], got \[2, 15, 4, 5\]"),
        ("delta_scan", (X, X, X, BETA[..., None]), {}, r"expected beta of shape \[2, 16, \*\], got \[2, 16, 4, 1\]"),
        ("delta_scan", (X, X[:, :, :3], X, BETA), {}, "the heads of k"),
        ("delta_scan", (X[:1], X[:1], X[:1], BETA[:1]), SHORT, "cu_seqlens must end with T = 16, got 15"),
        ("slot_scan", (X, X, NARROW, torch.zeros(16, 7)), {}, r"\[slot_scan\] expected decay of shape \[16, 8\], got \[16, 7\]"),
        ("slot_scan", (X, X, NARROW, X), {"read": "value"}, r"read must be \"slot\" or \"channel\""),
        ("slot_scan", (X[:1], X[:1], NARROW[:1], X[:1]), SHORT, "cu_seqlens must end with T = 16, got 15"),
    ],
)
def test_what_does_not_fit_says_so(scan, arguments, options, message):
    with pytest.raises(RuntimeError, match=message):
        getattr(ops, scan)(*arguments, **options)
