"""slot_scan against an independent formula in numpy, and as a citizen of PyTorch."""

import numpy as np
import pytest
import torch

slot_scan = torch.ops.cortado.slot_scan
B, T, H, M, X = 2, 9, 2, 3, 2
NAMES = ("q", "w", "x", "decay")


def make(read="slot", tokens=T, shared=False, state=True, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    slots = (tokens, M) if shared else (B, tokens, H, M)
    inputs = {
        "q": normal(B, tokens, H, M if read == "slot" else X),
        "w": normal(*slots),
        "x": normal(B, tokens, H, X),
        "decay": normal(*slots),  # of both signs, some above 1
        "initial_state": normal(B, H, M, X) if state else None,
    }
    inputs["decay"][..., 0][1::4] = 0
    return {name: y if y is None else y.requires_grad_() for name, y in inputs.items()}


def call(inputs, read="slot", **options):
    return slot_scan(*(inputs[name] for name in NAMES), read=read, initial_state=inputs["initial_state"], **options)


def formula(inputs, read="slot"):
    """o_t and S_T as explicit sums over pairs of tokens, each with the product of the decays between: no recurrence, no chunks."""
    q, w, x, decay = (inputs[name].detach().double().numpy() for name in NAMES)
    batch, tokens = x.shape[:2]
    w, decay = (y[None, :, None, :] if y.ndim == 2 else y for y in (w, decay))
    w, decay = (np.broadcast_to(y, (batch, tokens, H, M)) for y in (w, decay))
    start = inputs["initial_state"]
    start = np.zeros((batch, H, M, X)) if start is None else start.detach().double().numpy()

    def state(t):
        total = decay[:, : t + 1].prod(1)[..., None] * start
        for s in range(t + 1):
            between = decay[:, s + 1 : t + 1].prod(1)
            total = total + (between * w[:, s])[..., None] * x[:, s, :, None, :]
        return total

    subscripts = "bhmx,bhm->bhx" if read == "slot" else "bhmx,bhx->bhm"
    o = np.stack([np.einsum(subscripts, state(t), q[:, t]) for t in range(tokens)], 1)
    return o * (1.0 if read == "slot" else X**-0.5), state(tokens - 1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("read", ["slot", "channel"])
def test_formula(read, shared):
    for tokens in (1, T, 67):
        inputs = make(read, tokens, shared)
        for got, right in zip(call(inputs, read), formula(inputs, read)):
            np.testing.assert_allclose(got.detach().numpy(), right, rtol=1e-9, atol=1e-11 * max(1.0, np.abs(right).max()))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("read", ["slot", "channel"])
def test_gradients_by_differences_of_the_formula(read, shared):
    """Every gradient along a random direction against differences of the numpy formula, through o and S_T."""
    inputs = make(read, shared=shared)
    generator = torch.Generator().manual_seed(1)
    outputs = call(inputs, read)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64) for y in outputs]
    grads = torch.autograd.grad(outputs, list(inputs.values()), weights)

    def loss(moved):
        return sum((w.numpy() * y).sum() for w, y in zip(weights, formula(moved, read)))

    for (name, x), grad in zip(inputs.items(), grads):
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        step = 1e-5
        ahead, behind = ({**inputs, name: x.detach() + s * direction} for s in (step, -step))
        slope = (loss(ahead) - loss(behind)) / (2 * step)
        assert (grad * direction).sum().item() == pytest.approx(slope, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("read", ["slot", "channel"])
def test_gradcheck(read, shared):
    inputs = make(read, tokens=5, shared=shared)
    torch.autograd.gradcheck(lambda *values: call(dict(zip(inputs, values)), read), tuple(inputs.values()), fast_mode=True)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("read", ["slot", "channel"])
def test_opcheck(read, shared):
    inputs = make(read, shared=shared, dtype=torch.float32)
    arguments = {"read": read, "initial_state": inputs["initial_state"]}
    torch.library.opcheck(slot_scan, tuple(inputs[name] for name in NAMES), arguments)


def test_opcheck_packed_and_mixed():
    inputs = make(dtype=torch.float32, state=False)
    q, w, x, decay = (inputs[name].detach()[:1].requires_grad_() for name in NAMES)
    state = torch.zeros(3, H, M, X, requires_grad=True)
    torch.library.opcheck(slot_scan, (q, w, x, decay), {"initial_state": state, "cu_seqlens": torch.tensor([0, 4, 4, T])})
    mixed = (q.detach().bfloat16().requires_grad_(), w, x.detach().half().requires_grad_(), decay)
    torch.library.opcheck(slot_scan, mixed, {})


def test_compiles_as_one_graph():
    def layer(q, w, x, decay, initial_state):
        o, state = slot_scan(q.sin(), w, x, decay, initial_state=initial_state)
        return (o * o).sum() + state.sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for tokens in (T, 40):
        values = list(make(tokens=tokens, shared=True, dtype=torch.float32).values())
        right = torch.autograd.grad(layer(*values), values)
        for got, want in zip(torch.autograd.grad(compiled(*values), values), right):
            torch.testing.assert_close(got, want)


def test_autocast_accumulates_in_float32():
    inputs = make(dtype=torch.float32, tokens=40)
    plain_o, plain_state = call(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, state = call(inputs)
    assert torch.equal(o, plain_o) and torch.equal(state, plain_state)


def test_bad_shapes_say_so():
    w, x = torch.zeros(2, 16, 4, 8), torch.zeros(2, 16, 4, 5)
    with pytest.raises(RuntimeError, match=r"\[slot_scan\] expected decay of shape \[16, 8\], got \[16, 7\]"):
        slot_scan(w, w, x, torch.zeros(16, 7))
    with pytest.raises(RuntimeError, match=r"read must be \"slot\" or \"channel\""):
        slot_scan(w, w, x, w, read="value")
    with pytest.raises(RuntimeError, match="cu_seqlens must end with T = 16, got 15"):
        slot_scan(w[:1], w[:1], x[:1], w[:1], cu_seqlens=torch.tensor([0, 15]))
