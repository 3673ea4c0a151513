"""rwkv4 against transformers' RWKV; rwkv6 and rwkv7 against fla-core's naive recurrences and the papers' equations around them."""

import pytest
import torch
import torch.nn.functional as F
from fla_naive import naive
from transformers.models.rwkv.configuration_rwkv import RwkvConfig
from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention, rwkv_linear_attention_cpu

naive_recurrent_rwkv6 = naive("rwkv6.recurrent_naive").naive_recurrent_rwkv6
dplr = naive("generalized_delta_rule.dplr.naive")
TOLERANCE = 2e-5  # both packages compute in float32


def make_rwkv4(width, decay_scale):
    config = RwkvConfig(hidden_size=24, attention_hidden_size=width, num_hidden_layers=2)
    theirs = RwkvSelfAttention(config, layer_id=0)
    with torch.no_grad():
        theirs.time_decay.copy_(torch.linspace(-5, 2, width) + torch.tensor(decay_scale).log())
        theirs.time_first.normal_()
        for mix in (theirs.time_mix_key, theirs.time_mix_value, theirs.time_mix_receptance):
            mix.uniform_()
    return theirs


def rwkv4_weights(theirs):
    return {
        "k.weight": theirs.key.weight,
        "v.weight": theirs.value.weight,
        "r.weight": theirs.receptance.weight,
        "o.weight": theirs.output.weight,
        "mix_k": theirs.time_mix_key,
        "mix_v": theirs.time_mix_value,
        "mix_r": theirs.time_mix_receptance,
        "decay": theirs.time_decay,
        "bonus": theirs.time_first,
    }


@pytest.mark.parametrize("length", [1, 2, 65])
@pytest.mark.parametrize("decay_scale", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("width", [24, 40])
def test_rwkv4(mixer, close, same_gradients, length, decay_scale, width):
    torch.manual_seed(1)
    theirs = make_rwkv4(width, decay_scale)
    ours = mixer("rwkv4", 24, 1, width=width, float64=False)
    weights = rwkv4_weights(theirs)
    ours.fill(weights)
    x = (torch.randn(2, length, 24) * 3).requires_grad_()
    y, expected = ours(x), theirs(x)[0]
    close(y, expected, TOLERANCE)
    if length > 1:  # over one token the decay has no gradient at all in theirs
        same_gradients(y, expected, [x, *(ours.parameters[n] for n in weights)], [x, *weights.values()], TOLERANCE * 10)


def test_rwkv4_hands_its_state_over(mixer, close):
    """Their state (the last x, numerator, denominator, maximum) after each part of a sequence, and the outputs that follow from it."""
    torch.manual_seed(2)
    theirs = make_rwkv4(24, 1.0)
    ours = mixer("rwkv4", 24, 1, float64=False)
    ours.fill(rwkv4_weights(theirs))
    x = torch.randn(3, 50, 24)
    state = [torch.zeros(3, 24, 2) for _ in range(5)]
    state[4] -= 1e30
    with torch.no_grad():
        for part in (x[:, :20], x[:, 20:21], x[:, 21:]):
            # With more than one token theirs takes x_{t-1} of the first from state[1]; with one its `shifted` lacks a time axis,
            # which for B > 1 mixes up rows. So it runs row by row.
            expected = []
            for row in range(3):
                mine = [s[row : row + 1] for s in state]
                expected.append(theirs(part[row : row + 1], mine, use_cache=True)[0])
            close(ours.resume(part), torch.cat(expected), TOLERANCE)
            held = ours.state()
            close(held["shift"][:, 0], state[1][:, :, 0], TOLERANCE)
            for name, theirs_now in zip(("numerator", "denominator", "maximum"), state[2:]):
                close(held[name], theirs_now[:, :, 0], TOLERANCE, name)


@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("offset", [0.0, 100.0, -100.0])
def test_rwkv4_mean(mixer, close, strength, offset):
    """The mean itself, with the mixer as a bystander: all maps the identity, x = (k, v) in two channels' roles."""
    torch.manual_seed(3)
    ours = mixer("rwkv4", 8, 1, width=4, float64=False)
    zero, eye = torch.zeros(4, 4), torch.eye(4)
    decay, bonus = torch.randn(4) + torch.tensor(strength).log(), torch.randn(4)
    ours.fill(
        {
            "k.weight": torch.cat([eye, zero], 1),
            "v.weight": torch.cat([zero, eye], 1),
            "r.weight": torch.zeros(4, 8),  # σ(0) = 1/2
            "o.weight": torch.cat([eye, zero]) * 2,
            "mix_k": torch.ones(8),
            "mix_v": torch.ones(8),
            "mix_r": torch.ones(8),
            "decay": decay,
            "bonus": bonus,
        }
    )
    # An offset of all k changes nothing, and sixteenths stay exact next to 100. Theirs is given k without it: it forms the decay
    # as a difference of rounded maxima and is off by 5e-5 at 100.
    x = (torch.randn(2, 300, 8) * 64).round() / 16
    expected, _ = rwkv_linear_attention_cpu(decay, bonus, x[..., :4], x[..., 4:])
    x[..., :4] += offset
    close(ours(x)[..., :4], expected, TOLERANCE)


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4, 4), (2, 37, 3, 8, 5), (1, 130, 2, 16, 16)])
def test_rwkv6_operator(ops, close, same_gradients, shape, strength):
    torch.manual_seed(4)
    b, t, h, k, v = shape
    r, key, value = (torch.randn(b, t, h, n, requires_grad=True) for n in (k, k, v))
    g = (-torch.randn(b, t, h, k).exp() * strength).requires_grad_()
    bonus, start = torch.randn(h, k, requires_grad=True), torch.randn(b, h, k, v, requires_grad=True)
    ours, our_state = ops.gated_scan(r, key, value, g, bonus=bonus, initial_state=start)
    heads_first = [x.transpose(1, 2) for x in (r, key, value, g)]
    theirs, their_state = naive_recurrent_rwkv6(*heads_first, bonus, initial_state=start, output_final_state=True)
    close(ours, theirs.transpose(1, 2), TOLERANCE)
    close(our_state, their_state, TOLERANCE)
    joined = [torch.cat([a.flatten(), s.flatten()]) for a, s in ((ours, our_state), (theirs.transpose(1, 2), their_state))]
    leaves = [r, key, value, g, bonus, start]
    same_gradients(*joined, leaves, leaves, TOLERANCE * 5)


def test_rwkv6_layer(mixer, close, same_gradients):
    torch.manual_seed(5)
    heads, length = 4, 70
    ours = mixer("rwkv6", 24, heads, mix_rank=3, decay_rank=5, float64=False)
    p = ours.parameters
    with torch.no_grad():  # the low-rank maps start at 0, which would hide them
        for value in p.values():
            value += torch.randn_like(value) * 0.2
    x = torch.randn(2, length, 24, requires_grad=True)
    delta = F.pad(x, (0, 0, 1, 0))[:, :-1] - x
    low = torch.tanh((x + delta * p["mix_x"]) @ p["mix_down"].T).split(3, -1)
    r, w, k, v, g = (x + delta * (p["mix"][n] + low[n] @ p["mix_up"][n]) for n in range(5))
    decay = p["decay"] + torch.tanh(w @ p["decay_down"].T) @ p["decay_up"].T
    r, k, v, g = (y @ p[f"{n}.weight"].T for n, y in zip("rkvg", (r, k, v, g)))
    split = [y.unflatten(2, (heads, -1)).transpose(1, 2) for y in (r, k, v, -decay.exp())]
    o, _ = naive_recurrent_rwkv6(*split, p["bonus"], scale=1.0)
    o = F.group_norm(o.transpose(1, 2).reshape(2 * length, 24), heads, p["norm_weight"], p["norm_bias"], 64e-5)
    theirs = (o.view(2, length, 24) * F.silu(g)) @ p["o.weight"].T
    close(ours(x), theirs, TOLERANCE)
    leaves = [x, *p.values()]
    same_gradients(ours(x), theirs, leaves, leaves, TOLERANCE * 10)
    close(torch.cat([ours.resume(x[:, :33]), ours.resume(x[:, 33:34]), ours.resume(x[:, 34:])], 1), theirs, TOLERANCE)


def theirs_by(recurrence, r, k, v, a, b, g, start, scale):
    """The naive functions have heads first, always scale by K^-1/2 and compute in float32."""
    x = [y.transpose(1, 2) for y in (r * (scale * r.shape[-1] ** 0.5), k, v, a, b, g)]
    o, last = recurrence(*x, initial_state=start)
    return o.transpose(1, 2), last


@pytest.mark.parametrize("strength", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("shape", [(1, 1, 1, 4, 4), (2, 37, 3, 8, 5), (1, 128, 2, 16, 16)])
def test_rwkv7_operator(ops, close, same_gradients, shape, strength):
    torch.manual_seed(7)
    b, t, h, k, v = shape
    r, key, value = (torch.randn(b, t, h, n, requires_grad=True) for n in (k, k, v))
    unit = F.normalize(torch.randn(b, t, h, k), dim=-1)
    a, write = (-unit).requires_grad_(), (unit * torch.rand(b, t, h, k)).requires_grad_()
    g = (-torch.rand(b, t, h, k) * strength).requires_grad_()
    start = torch.randn(b, h, k, v, requires_grad=True)
    ours, our_state = ops.dplr_scan(r, key, value, a, write, g, scale=1.0, initial_state=start)
    leaves = [r, key, value, a, write, g, start]
    for recurrence in [dplr.dplr_recurrence] + ([dplr.dplr_chunkwise] if t % 32 == 0 else []):
        theirs, their_state = theirs_by(recurrence, *leaves, scale=1.0)
        close(ours, theirs, TOLERANCE)
        close(our_state, their_state, TOLERANCE)
        joined = [torch.cat([o.flatten(), s.flatten()]) for o, s in ((ours, our_state), (theirs, their_state))]
        got = torch.autograd.grad(joined[0].sum(), leaves, retain_graph=True)
        for number, (mine, other) in enumerate(zip(got, torch.autograd.grad(joined[1].sum(), leaves))):
            close(mine, other, TOLERANCE * 5, f"gradient {number}")


def test_rwkv7_layer(mixer, close, same_gradients):
    torch.manual_seed(8)
    heads, length = 4, 70
    ours = mixer("rwkv7", 24, heads, decay_rank=3, rate_rank=5, gate_rank=4, float64=False)
    p = ours.parameters
    with torch.no_grad():  # the low-rank maps start at 0, which would hide them
        for value in p.values():
            value += torch.randn_like(value) * 0.2
    x = torch.randn(2, length, 24, requires_grad=True)
    delta = F.pad(x, (0, 0, 1, 0))[:, :-1] - x
    r, w, k, v, a, g = (x + delta * p[f"mix_{which}"] for which in "rwkvag")
    w = -0.6065306597126334 * torch.sigmoid(p["decay"] + torch.tanh(w @ p["decay_down"].T) @ p["decay_up"].T)
    a = torch.sigmoid(p["rate"] + a @ p["rate_down"].T @ p["rate_up"].T)
    g = torch.sigmoid(g @ p["gate_down"].T) @ p["gate_up"].T
    r, k, v = (y @ p[f"{n}.weight"].T for n, y in zip("rkv", (r, k, v)))
    kk = F.normalize((k * p["removal_scale"]).unflatten(2, (heads, -1)), dim=-1)
    k = k * (1 + (a - 1) * p["key_rate"])
    r, k, v, w, a = (y.unflatten(2, (heads, -1)) for y in (r, k, v, w, a))
    o, _ = theirs_by(dplr.dplr_recurrence, r, k, v, -kk, kk * a, w, None, scale=1.0)
    o = F.group_norm(o.reshape(2 * length, 24), heads, p["norm_weight"], p["norm_bias"], 64e-5).view(2, length, 24)
    theirs = ((o + ((r * k * p["bonus"]).sum(-1, keepdim=True) * v).flatten(2)) * g) @ p["o.weight"].T
    close(ours(x), theirs, TOLERANCE)
    leaves = [x, *p.values()]
    same_gradients(ours(x), theirs, leaves, leaves, TOLERANCE * 10)
    close(torch.cat([ours.resume(x[:, :33]), ours.resume(x[:, 33:34]), ours.resume(x[:, 34:])], 1), theirs, TOLERANCE)


def test_rwkv7_channel_mix(mixer, close, same_gradients):
    torch.manual_seed(9)
    ours = mixer("rwkv7_channel_mix", 24, 1, hidden=40, float64=False)
    p, x = ours.parameters, torch.randn(2, 30, 24, requires_grad=True)
    mixed = x + (F.pad(x, (0, 0, 1, 0))[:, :-1] - x) * p["mix_k"]
    theirs = F.relu(mixed @ p["k.weight"].T).square() @ p["v.weight"].T
    close(ours(x), theirs, TOLERANCE)
    leaves = [x, *p.values()]
    same_gradients(ours(x), theirs, leaves, leaves, TOLERANCE * 10)
