"""delta_scan and its mixers against fla-core's naive functions and transformers' Qwen3-Next and Kimi Linear."""

import inspect

import pytest
import torch
from fla_naive import naive
from transformers.models.kimi_linear import modeling_kimi_linear as kimi
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
from transformers.models.qwen3_next import modeling_qwen3_next as qwen
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig

rule, gated_rule, kda = naive("delta_rule.naive"), naive("gated_delta_rule.naive"), naive("kda.naive")
# This is the packages' rounding, which always compute in float32; ours is tested in float64 elsewhere.
CLOSE = 2e-5
SHAPES = [(2, 64, 2, 8, 8), (1, 128, 3, 16, 24), (2, 192, 1, 32, 16)]  # B, T, H, K, V; the chunked ones need multiples of 64


@pytest.fixture(scope="module", autouse=True)
def pytorch_paths():
    """transformers takes fla's Triton kernels where fla is installed, GPU or not; under its wrappers is the PyTorch code."""
    with pytest.MonkeyPatch.context() as patch:
        for module, word in ((qwen, "gated_delta_rule"), (qwen, "causal_conv1d"), (kimi, "kimi_delta"), (kimi, "causal_conv1d")):
            names = [name for name in dir(module) if word in name]
            assert names, (module, word)
            for name in names:
                patch.setattr(module, name, inspect.unwrap(getattr(module, name)))
        yield


def make(shape, gate=None, strength=1.0, seed=0):
    """q, k (unit), v, beta and g with gates of `strength` times the usual size."""
    B, T, H, K, V = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(*sizes, generator=generator)

    g = None
    if gate:
        g = torch.nn.functional.logsigmoid(normal(*((B, T, H) if gate == "head" else (B, T, H, K)))) * strength
    k = torch.nn.functional.normalize(normal(B, T, H, K), dim=-1)
    return [normal(B, T, H, K), k, normal(B, T, H, V), normal(B, T, H).sigmoid(), g, normal(B, H, K, V)]


def leaves(values):
    return [x if x is None else x.detach().clone().requires_grad_() for x in values]


def compare(ops, close, same_gradients, values, theirs, state=True):
    """theirs(q, k, v, beta, g, initial) -> (o, state or None)."""
    a, b = leaves(values), leaves(values)
    o, last = ops.delta_scan(*a[:5], initial_state=a[5] if state else None)
    right, right_last = theirs(*b[:5], b[5] if state else None)
    close(o, right, CLOSE, "o")
    ours, others = [o], [right]
    if right_last is not None:
        close(last, right_last, CLOSE, "state")
        ours.append(last)
        others.append(right_last)
    keep = [i for i, x in enumerate(a) if x is not None and (state or i < 5)]
    joined = [torch.cat([y.flatten() for y in pair]) for pair in (ours, others)]
    same_gradients(*joined, [a[i] for i in keep], [b[i] for i in keep], 5e-5)


def heads_first(*values):
    return [x.transpose(1, 2) for x in values]


@pytest.mark.parametrize("shape", SHAPES)
def test_delta_rule(ops, close, same_gradients, shape):
    def recurrence(q, k, v, beta, g, initial):
        o, last = rule.delta_rule_recurrence(*heads_first(q, k, v, beta), initial_state=initial)
        return o.transpose(1, 2), last

    def chunkwise(q, k, v, beta, g, initial):
        o, last = rule.delta_rule_chunkwise(*heads_first(q, k, v, beta))
        return o.transpose(1, 2), last

    values = make(shape)
    compare(ops, close, same_gradients, values, recurrence)
    compare(ops, close, same_gradients, values, recurrence, state=False)
    compare(ops, close, same_gradients, values, chunkwise, state=False)


@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_delta_rule(ops, close, same_gradients, shape, strength):
    def recurrent(q, k, v, beta, g, initial):
        return gated_rule.naive_recurrent_gated_delta_rule(q, k, v, beta, g, initial_state=initial, output_final_state=True)

    def chunk(q, k, v, beta, g, initial):
        return gated_rule.naive_chunk_gated_delta_rule(q, k, v, g, beta, initial_state=initial, output_final_state=True)

    def transformers_chunk(q, k, v, beta, g, initial):
        return qwen.torch_chunk_gated_delta_rule(q, k, v, g, beta, initial_state=initial, output_final_state=True)

    def transformers_recurrent(q, k, v, beta, g, initial):
        return qwen.torch_recurrent_gated_delta_rule(q, k, v, g, beta, initial_state=initial, output_final_state=True)

    values = make(shape, "head", strength)
    for theirs in (recurrent, chunk, transformers_chunk, transformers_recurrent):
        compare(ops, close, same_gradients, values, theirs, state=strength != 1)


@pytest.mark.parametrize("strength", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_kda(ops, close, same_gradients, shape, strength):
    def recurrent(q, k, v, beta, g, initial):
        return kda.naive_recurrent_kda(q, k, v, g, beta, initial_state=initial, output_final_state=True)

    def chunk(q, k, v, beta, g, initial):
        return kda.naive_chunk_kda(q, k, v, g, beta, initial_state=initial, output_final_state=True)

    values = make(shape, "channel", strength)
    compare(ops, close, same_gradients, values, recurrent)
    if strength < 10:
        compare(ops, close, same_gradients, values, chunk)
    else:
        # Their chunked form masks exp of positive differences of cumulative gates; where these overflow, its gradients are NaN.
        for ours, theirs in zip(ops.delta_scan(*values[:5], initial_state=values[5]), chunk(*values)):
            close(ours, theirs, 1e-4, "by chunks")  # and the differences lose digits


def test_kda_with_fewer_key_heads(ops, close, same_gradients):
    B, T, H, K, V = 2, 64, 4, 8, 6
    q, k, _, _, _, _ = make((B, T, 2, K, V), seed=1)
    _, _, v, beta, g, initial = make((B, T, H, K, V), "channel")

    def recurrent(q, k, v, beta, g, initial):
        return kda.naive_recurrent_kda(q, k, v, g, beta, initial_state=initial, output_final_state=True)

    compare(ops, close, same_gradients, [q, k, v, beta, g, initial], recurrent)


@pytest.mark.parametrize("gate", ["head", "channel"])
def test_states_are_handed_over(ops, close, gate):
    """They read the first part and we the second, and the other way round."""
    naive = gated_rule.naive_recurrent_gated_delta_rule if gate == "head" else kda.naive_recurrent_kda
    q, k, v, beta, g, initial = make((2, 100, 2, 16, 8), gate)

    def ours(part, state):
        return ops.delta_scan(*(x[:, part] for x in (q, k, v, beta, g)), initial_state=state)

    def theirs(part, state):
        named = {name: x[:, part] for name, x in {"q": q, "k": k, "v": v, "beta": beta, "g": g}.items()}
        return naive(**named, initial_state=state, output_final_state=True)

    whole, last = theirs(slice(0, 100), initial)
    for first, second in ((ours, theirs), (theirs, ours)):
        a, middle = first(slice(0, 37), initial)
        b, end = second(slice(37, 100), middle)
        close(torch.cat([a, b], 1), whole, CLOSE, "o")
        close(end, last, CLOSE, "state")


def compare_layers(close, ours, layer, arrange, tokens=(1, 70, 128)):
    """`arrange` maps their parameters, or the parameters' gradients, by name to ours."""
    theirs = dict(layer.named_parameters())
    ours.fill(arrange(theirs))
    for length in tokens:
        x = torch.randn(2, length, layer.hidden_size, generator=torch.Generator().manual_seed(length))
        mine, other = x.double().requires_grad_(), x.clone().requires_grad_()
        y, right = ours(mine), layer(other)
        close(y, right, CLOSE, f"T = {length}")
        weight = torch.randn(right.shape, generator=torch.Generator().manual_seed(1))
        got = torch.autograd.grad((y * weight.double()).sum(), [mine, *ours.parameters.values()])
        wanted = torch.autograd.grad((right * weight).sum(), [other, *theirs.values()])
        close(got[0], wanted[0], 5e-5, "gradient of x")
        arranged = arrange(dict(zip(theirs, wanted[1:])))
        for name, grad in zip(ours.parameters, got[1:]):
            close(grad, arranged[name].reshape(grad.shape), 5e-5, f"gradient of {name}, T = {length}")
    x = torch.randn(2, 90, layer.hidden_size)
    right = layer(x)
    parts = [ours.resume(x[:, a:b].double()) for a, b in ((0, 40), (40, 41), (41, 90))]
    close(torch.cat(parts, 1), right, CLOSE, "resumed")


def randomise(layer):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else noise * (0.5 if parameter.dim() < 2 else 0.3))
    return layer


@pytest.mark.parametrize("key_heads, heads, head_dim, value_dim", [(2, 4, 8, 6), (3, 3, 16, 8)])
def test_gated_delta_net_is_qwen3_next(mixer, close, key_heads, heads, head_dim, value_dim):
    config = Qwen3NextConfig(hidden_size=24, linear_num_value_heads=heads, linear_num_key_heads=key_heads,
                             linear_key_head_dim=head_dim, linear_value_head_dim=value_dim, linear_conv_kernel_dim=4,
                             num_hidden_layers=1, layer_types=["linear_attention"])
    layer = randomise(qwen.Qwen3NextGatedDeltaNet(config, 0))
    ours = mixer("gated_delta_net", 24, heads, key_heads=key_heads, head_dim=head_dim, value_head_dim=value_dim, norm_eps=1e-6)
    group = heads // key_heads

    def arrange(theirs):
        # Their projections interleave by key head: [q K, k K, v group·V, z group·V] and [b group, a group].
        sizes = [head_dim, head_dim, group * value_dim, group * value_dim]
        rows = theirs["in_proj_qkvz.weight"].view(key_heads, -1, 24).split(sizes, 1)
        more = theirs["in_proj_ba.weight"].view(key_heads, -1, 24).split([group, group], 1)
        taps = theirs["conv1d.weight"].split([key_heads * head_dim, key_heads * head_dim, heads * value_dim])
        q, k, v, z, b, a = (part.reshape(-1, 24) for part in (*rows, *more))
        return {"q.weight": q, "k.weight": k, "v.weight": v, "gate.weight": z, "beta.weight": b, "decay.weight": a,
                "q_conv.weight": taps[0], "k_conv.weight": taps[1], "v_conv.weight": taps[2],
                "a_log": theirs["A_log"], "dt_bias": theirs["dt_bias"], "norm.weight": theirs["norm.weight"],
                "o.weight": theirs["out_proj.weight"]}

    compare_layers(close, ours, layer, arrange)


@pytest.mark.mechanism("kda")
@pytest.mark.parametrize("heads, head_dim", [(4, 6), (2, 16)])
def test_kda_is_kimi_linear(mixer, close, heads, head_dim):
    config = KimiLinearConfig(hidden_size=24, linear_num_heads=heads, linear_head_dim=head_dim, linear_conv_kernel_dim=4,
                              num_hidden_layers=1, layer_types=["linear_attention"])
    layer = randomise(kimi.KimiLinearDeltaAttention(config, 0))
    ours = mixer("kda", 24, heads, head_dim=head_dim, norm_eps=config.rms_norm_eps)

    def arrange(theirs):
        taps = theirs["conv1d.weight"].split(heads * head_dim)
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "decay_in": "forget_gate.f_a_proj", "decay": "forget_gate.f_b_proj",
                 "beta": "b_proj", "gate_in": "g_a_proj", "gate": "g_b_proj", "norm": "o_norm", "o": "o_proj"}
        return {**{f"{name}.weight": theirs[f"{their}.weight"] for name, their in names.items()},
                "q_conv.weight": taps[0], "k_conv.weight": taps[1], "v_conv.weight": taps[2],
                "a_log": theirs["forget_gate.A_log"], "dt_bias": theirs["forget_gate.dt_bias"]}

    compare_layers(close, ours, layer, arrange)
