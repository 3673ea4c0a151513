"""abc and gated_slot against flash-linear-attention's naive forms: outputs, gradients, states.

The naive forms turn whatever they are given into float32, in which ABC's differences of a logcumsumexp and the small gradients of
nearly equal slots have few digits left. So `.float()` is made to mean float64 here, and the comparison is to 1e-9."""

import pytest
import torch
from fla_naive import naive

abc, gsa = naive("abc.naive"), naive("gsa.naive")
SHAPES = [(1, 2, 1, 4, 4, 3), (2, 33, 2, 8, 5, 7), (1, 130, 3, 16, 16, 9)]  # B, T, H, K, V, M


@pytest.fixture(autouse=True)
def float64(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def heads_first(x):
    return x.transpose(1, 2)


def inputs(shape, seed=0):
    B, T, H, K, V, M = shape
    torch.manual_seed(seed)
    return [torch.randn(B, T, H, n, dtype=torch.float64) for n in (K, K, V, M)]


@pytest.mark.parametrize("size", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_slot(ops, close, same_gradients, shape, size):
    q, k, v, f = inputs(shape)
    g = torch.nn.functional.logsigmoid(f) * size / 8
    s = -torch.expm1(g)
    ours, theirs = leaves(q, k, v, s, g), leaves(q, k, v, s, g)
    o, keys, values = ops.gated_slot(*ours, scale=0.7)
    right, (right_keys, right_values) = gsa.naive_recurrent_gsa(*theirs, scale=0.7, output_final_state=True)
    close(o, right, 1e-9, "o")
    close(keys, right_keys.transpose(2, 3), 1e-9, "key state")  # theirs is [K, M]
    close(values, right_values, 1e-9, "value state")
    same_gradients(o, right, ours, theirs, 1e-8)


def test_gated_slot_goes_on_from_their_state(ops, close):
    q, k, v, f = inputs((2, 40, 2, 8, 6, 5))
    g = torch.nn.functional.logsigmoid(f) / 8
    tensors = (q, k, v, -torch.expm1(g), g)
    whole, _ = gsa.naive_recurrent_gsa(*tensors)
    _, (keys, values) = gsa.naive_recurrent_gsa(*(x[:, :17] for x in tensors), output_final_state=True)
    rest, *_ = ops.gated_slot(*(x[:, 17:] for x in tensors), key_state=keys.transpose(2, 3), value_state=values)
    close(rest, whole[:, 17:], 1e-9)


def test_gated_slot_with_grouped_heads(ops, close):
    q, _, _, _ = inputs((2, 30, 6, 8, 6, 5))
    _, k, v, f = inputs((2, 30, 2, 8, 6, 5), 1)
    g = torch.nn.functional.logsigmoid(f) / 8
    right, _ = gsa.naive_recurrent_gsa(q, k, v, -torch.expm1(g), g)
    o, *_ = ops.gated_slot(q, k, v, -torch.expm1(g), g)
    close(o, right, 1e-9)


@pytest.mark.parametrize("size", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_abc(ops, close, same_gradients, shape, size):
    q, k, v, s = inputs(shape, 2)
    s = s * size
    ours, theirs = leaves(q, k, v, s), leaves(q, k, v, s)
    o, keys, values, normalizer, maximum = ops.abc(*ours)
    right, state = abc.naive_recurrent_abc(*map(heads_first, theirs), output_final_state=True)
    close(o, heads_first(right), 1e-9, "o")
    # Their state is normalised, and lacks the normaliser (it cannot be resumed): ours divided by it is the same.
    close(keys / normalizer[..., None], state[0].transpose(2, 3), 1e-9, "key state")
    close(values / normalizer[..., None], state[1], 1e-9, "value state")
    close(maximum + normalizer.log(), s.logsumexp(1), 1e-9, "log normaliser")
    same_gradients(o, heads_first(right), ours, theirs, 1e-7)
    right, _ = abc.naive_cumsum_abc(*map(heads_first, theirs))
    close(o, heads_first(right), 1e-9, "o of the cumulative form")


def test_abc_hands_its_state_over(ops, close):
    q, k, v, s = inputs((2, 60, 2, 8, 6, 5), 3)
    right, _ = abc.naive_recurrent_abc(*map(heads_first, (q, k, v, s)))
    names = ("key_state", "value_state", "normalizer", "maximum")
    for cut in (1, 17, 59):
        first, *state = ops.abc(*(x[:, :cut] for x in (q, k, v, s)))
        second, *_ = ops.abc(*(x[:, cut:] for x in (q, k, v, s)), **dict(zip(names, state)))
        close(torch.cat([first, second], 1), heads_first(right), 1e-9)


def silu_heads(x, heads):
    return torch.nn.functional.silu(x).unflatten(-1, (heads, -1))


def test_the_gated_slot_layer(mixer, close, same_gradients):
    """The layer around their naive operator: silu on q, k, v, logsigmoid(f)/8, scale 1, RMSNorm(silu(o)) over the whole width."""
    torch.manual_seed(4)
    layer = mixer("gated_slot", 24, 4, slots=5)
    weights = {name: torch.randn_like(p) / 5 for name, p in layer.parameters.items()}
    layer.fill(weights)
    ours, theirs = leaves(*[torch.randn(2, 30, 24, dtype=torch.float64)] * 2)
    q, k, v = (silu_heads(theirs @ weights[f"{name}.weight"].T, 4) for name in "qkv")
    g = torch.nn.functional.logsigmoid(theirs @ weights["f.weight"].T).unflatten(-1, (4, 5)) / 8
    o, _ = gsa.naive_recurrent_gsa(q, k, v, 1 - g.exp(), g, scale=1.0)
    y = torch.nn.functional.silu(o.flatten(2).double())
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * weights["norm.weight"]
    right = y @ weights["o.weight"].T
    close(layer(ours), right, 1e-9)
    same_gradients(layer(ours), right, [ours], [theirs], 1e-8)


def test_the_abc_layer(mixer, close):
    """The layer around their naive operator: logits clamped to ±32, RMSNorm per head, silu gate."""
    torch.manual_seed(5)
    layer = mixer("abc", 24, 4, slots=5)
    weights = {name: torch.randn_like(p) for name, p in layer.parameters.items()}
    weights["s.weight"] *= 10  # so that the clamp matters
    layer.fill(weights)
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    q, k, v, s = ((x @ weights[f"{name}.weight"].T).unflatten(-1, (4, -1)) for name in "qkvs")
    assert (s.abs() > 32).any()
    o = heads_first(abc.naive_cumsum_abc(*map(heads_first, (q, k, v, s.clamp(-32, 32))))[0])
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * weights["norm.weight"]
    right = (o.flatten(2) * torch.nn.functional.silu(x @ weights["g.weight"].T)) @ weights["o.weight"].T
    close(layer(x), right, 1e-9)
