"""delta_scan against an independent formula in numpy, and as a citizen of PyTorch."""

import numpy as np
import pytest
import torch

delta_scan = torch.ops.cortado.delta_scan
B, T, H, K, V = 2, 9, 2, 3, 2
GATES = {"none": None, "head": (B, T, H), "channel": (B, T, H, K), "constant": (H,), "constant channel": (H, K)}
NAMES = ("q", "k", "v", "beta", "g")


def make(gate="channel", tokens=T, state=True, dtype=torch.float64, grad=True, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    shape = GATES[gate]
    inputs = {
        "q": normal(B, tokens, H, K),
        "k": torch.nn.functional.normalize(normal(B, tokens, H, K), dim=-1),
        "v": normal(B, tokens, H, V),
        "beta": normal(B, tokens, H).sigmoid() * 2,
        "g": None if shape is None else -normal(*[tokens if n == T else n for n in shape]).abs(),
        "initial_state": normal(B, H, K, V).to(torch.float64 if dtype == torch.float64 else torch.float32) if state else None,
    }
    return {name: x if x is None else x.requires_grad_(grad) for name, x in inputs.items()}


def call(inputs, **options):
    return delta_scan(*(inputs[name] for name in NAMES), initial_state=inputs["initial_state"], **options)


def formula(inputs):
    """o_t and S_T as sums of what each token wrote, carried forward by the product of all later tokens' matrices."""
    x = {name: None if y is None else y.detach().double().numpy() for name, y in inputs.items()}
    q, k, v, beta = x["q"], x["k"], x["v"], x["beta"]
    batch, tokens = k.shape[:2]
    g = np.zeros(k.shape) if x["g"] is None else x["g"]
    if g.ndim == 3:
        g = g[..., None]
    elif g.ndim == 1:
        g = g[:, None]
    g = np.broadcast_to(g, k.shape)
    start = np.zeros((batch, H, K, V)) if x["initial_state"] is None else x["initial_state"]
    keep = np.eye(K) - beta[..., None, None] * k[..., :, None] * k[..., None, :]  # I - beta k k'
    change = keep * np.exp(g)[..., None, :]  # ... diag(exp g): [B,T,H,K,K]
    write = beta[..., None, None] * k[..., :, None] * v[..., None, :]

    def state(t):
        product, total = np.eye(K), 0.0
        for s in range(t, -1, -1):
            total = total + product @ write[:, s]
            product = product @ change[:, s]
        return total + product @ start

    o = [np.einsum("bhkv,bhk->bhv", state(t), q[:, t]) for t in range(tokens)]
    return np.stack(o, 1) * K**-0.5, state(tokens - 1)


@pytest.mark.parametrize("gate", GATES)
def test_formula(gate):
    for tokens in (1, T, 67):
        inputs = make(gate, tokens, state=tokens != T)
        o, state = call(inputs)
        right_o, right_state = formula(inputs)
        np.testing.assert_allclose(o.detach().numpy(), right_o, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(state.detach().numpy(), right_state, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("gate", GATES)
def test_gradients_by_differences_of_the_formula(gate):
    """Every gradient along a random direction against differences of the numpy formula, through o and S_T."""
    inputs = make(gate)
    generator = torch.Generator().manual_seed(1)
    outputs = call(inputs)
    weights = [torch.randn(y.shape, generator=generator, dtype=torch.float64) for y in outputs]
    leaves = {name: x for name, x in inputs.items() if x is not None}
    grads = torch.autograd.grad(outputs, list(leaves.values()), weights)

    def loss(moved):
        return sum((w.numpy() * y).sum() for w, y in zip(weights, formula(moved)))

    for (name, x), grad in zip(leaves.items(), grads):
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        step = 1e-5
        ahead, behind = ({**inputs, name: x.detach() + s * direction} for s in (step, -step))
        slope = (loss(ahead) - loss(behind)) / (2 * step)
        assert (grad * direction).sum().item() == pytest.approx(slope, rel=1e-6, abs=1e-8), name


@pytest.mark.parametrize("gate", GATES)
def test_gradcheck(gate):
    inputs = make(gate, tokens=5)
    leaves = {name: x for name, x in inputs.items() if x is not None}

    def run(*values):
        return call({**inputs, **dict(zip(leaves, values))})

    torch.autograd.gradcheck(run, tuple(leaves.values()), fast_mode=True)


@pytest.mark.parametrize("gate", GATES)
def test_opcheck(gate):
    inputs = make(gate, dtype=torch.float32)
    options = {"scale": 0.7, "initial_state": inputs["initial_state"]}
    torch.library.opcheck(delta_scan, tuple(inputs[name] for name in NAMES), options)


def test_opcheck_packed_and_mixed():
    inputs = make(dtype=torch.float32, state=False)
    q, k, v, beta, g = (inputs[name].detach()[:1].requires_grad_() for name in NAMES)
    state = torch.zeros(3, H, K, V, requires_grad=True)
    bounds = torch.tensor([0, 4, 4, T])
    torch.library.opcheck(delta_scan, (q, k, v, beta, g), {"initial_state": state, "cu_seqlens": bounds})
    mixed = (q.detach().bfloat16().requires_grad_(), k, v.detach().half().requires_grad_(), beta, g)
    torch.library.opcheck(delta_scan, mixed, {})


@pytest.mark.parametrize("gate", ["none", "head", "channel"])
def test_compiles_as_one_graph(gate):
    def layer(q, k, v, beta, g, initial_state):
        o, state = delta_scan(q.sin(), k, v, beta, g, initial_state=initial_state)
        return (o * o).sum() + state.sum()

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for tokens in (T, 70):
        inputs = make(gate, tokens=tokens, dtype=torch.float32)
        values = [inputs[name] for name in (*NAMES, "initial_state")]
        leaves = [x for x in values if x is not None]
        right = torch.autograd.grad(layer(*values), leaves)
        for got, want in zip(torch.autograd.grad(compiled(*values), leaves), right):
            torch.testing.assert_close(got, want)


def test_autocast_accumulates_in_float32():
    inputs = make(dtype=torch.float32, tokens=70)
    plain_o, plain_state = call(inputs)
    plain = torch.autograd.grad(plain_o.sum(), inputs["k"])[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o, state = call(inputs)
        grad = torch.autograd.grad(o.sum(), inputs["k"])[0]
    assert o.dtype == state.dtype == torch.float32
    assert torch.equal(o, plain_o) and torch.equal(state, plain_state) and torch.equal(grad, plain)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear = torch.nn.Linear(K, K)
        q = linear(inputs["q"])  # bfloat16, as it comes in a model under autocast
        o, state = call({**inputs, "q": q})
    assert q.dtype == torch.bfloat16 and o.dtype == state.dtype == torch.float32
    o.sum().backward()
    assert linear.weight.grad.dtype == torch.float32 and inputs["v"].grad.dtype == torch.float32


def test_differentiating_twice_says_so():
    inputs = make(tokens=5)
    o, _ = call(inputs)
    (grad,) = torch.autograd.grad(o.pow(2).sum(), inputs["q"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"delta_scan_backward\] differentiating twice is not supported"):
        torch.autograd.grad(grad.sum(), inputs["k"])


def test_inference_mode_gives_the_same():
    inputs = make(tokens=20)
    right = call(inputs)
    with torch.inference_mode():
        for got, want in zip(call(inputs), right):
            assert torch.equal(got, want)


def test_bad_shapes_say_so():
    x, beta = torch.zeros(2, 16, 4, 8), torch.zeros(2, 16, 4)
    with pytest.raises(RuntimeError, match=r"\[delta_scan\] expected v of shape \[2, 16, \*, \*\], got \[2, 15, 4, 5\]"):
        delta_scan(x, x, torch.zeros(2, 15, 4, 5), beta)
    with pytest.raises(RuntimeError, match=r"expected beta of shape \[2, 16, \*\], got \[2, 16, 4, 1\]"):
        delta_scan(x, x, x, beta[..., None])
    with pytest.raises(RuntimeError, match="the heads of k"):
        delta_scan(x, torch.zeros(2, 16, 3, 8), x, beta)
    with pytest.raises(RuntimeError, match="cu_seqlens must end with T = 16, got 15"):
        delta_scan(x[:1], x[:1], x[:1], beta[:1], cu_seqlens=torch.tensor([0, 15]))
