"""Griffin's recurrent block and its local attention against transformers' RecurrentGemma: outputs, gradients, decoding."""

import pytest
import torch
from transformers import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import (
    RecurrentGemmaAttention,
    RecurrentGemmaRecurrentBlock,
)


def block(dim, width, heads, taps, gate):
    config = RecurrentGemmaConfig(
        hidden_size=dim, lru_width=width, num_attention_heads=heads, conv1d_width=taps, num_hidden_layers=1
    )
    made = RecurrentGemmaRecurrentBlock(config, 0).double()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.normal_(0, gate if "gate" in name else 0.4)
        made.rg_lru.recurrent_param.uniform_(-7, 0)
    return made


def ours_of(mixer, theirs, dim, width, heads, taps):
    ours = mixer("griffin", dim, heads, width=width, taps=taps)
    lru = theirs.rg_lru
    pairs = {
        "x.weight": theirs.linear_x.weight,
        "x.bias": theirs.linear_x.bias,
        "y.weight": theirs.linear_y.weight,
        "y.bias": theirs.linear_y.bias,
        "o.weight": theirs.linear_out.weight,
        "o.bias": theirs.linear_out.bias,
        "conv.weight": theirs.conv_1d.weight,
        "conv.bias": theirs.conv_1d.bias,
        "rg_lru.lambda": lru.recurrent_param,
        "rg_lru.recurrence_gate.weight": lru.recurrent_gate_weight,
        "rg_lru.recurrence_gate.bias": lru.recurrent_gate_bias,
        "rg_lru.input_gate.weight": lru.input_gate_weight,
        "rg_lru.input_gate.bias": lru.input_gate_bias,
    }
    ours.fill(pairs)
    return ours, pairs


@pytest.mark.parametrize("gate", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("tokens", [2, 7, 65])
@pytest.mark.parametrize("sizes", [(12, 12, 3, 4), (10, 16, 4, 2)])
def test_the_recurrent_block(mixer, close, same_gradients, sizes, tokens, gate):
    torch.manual_seed(1)
    dim, width, heads, taps = sizes
    theirs = block(dim, width, heads, taps, gate)
    ours, pairs = ours_of(mixer, theirs, dim, width, heads, taps)
    x = torch.randn(2, tokens, dim, dtype=torch.float64, requires_grad=True)
    positions = torch.arange(tokens).expand(2, -1)
    expected, _ = theirs(x, positions, None, use_cache=False)
    got = ours(x)
    # The package runs the recurrence in float32 and forms sqrt(1 - a^2) by subtraction.
    close(got, expected, 1e-5)
    same_gradients(got, expected, [x] + [ours.parameters[n] for n in pairs], [x, *pairs.values()], 1e-3)


def test_decoding_goes_on_from_the_state(mixer, close):
    torch.manual_seed(2)
    dim, width, heads, taps = 12, 12, 3, 4
    theirs = block(dim, width, heads, taps, 1.0)
    ours, _ = ours_of(mixer, theirs, dim, width, heads, taps)
    x = torch.randn(2, 30, dim, dtype=torch.float64)
    with torch.no_grad():
        # Prefills, then goes token by token, each side from its own state.
        expected = [theirs(x[:, :17], torch.arange(17).expand(2, -1), None)[0]]
        got = [ours.resume(x[:, :17])]
        for t in range(17, 30):
            expected.append(theirs(x[:, t : t + 1], torch.full((2, 1), t), None)[0])
            got.append(ours.resume(x[:, t : t + 1]))
    close(torch.cat(got, 1), torch.cat(expected, 1), 1e-5)
    close(ours.state()["h"], theirs.rg_lru.recurrent_states, 1e-5)
    close(ours.state()["tail"].transpose(1, 2), theirs.conv1d_state, 1e-6)


def attention(dim, heads, head_dim, fraction, window):
    config = RecurrentGemmaConfig(
        hidden_size=dim,
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=head_dim,
        attention_bias=True,  # its output map always has a bias; our setting is for all four maps
        num_hidden_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": fraction},
    )
    config.sliding_window = window
    config._attn_implementation = "eager"
    made = RecurrentGemmaAttention(config, 0).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.4)
    return made


@pytest.mark.parametrize("fraction", [0.5, 1.0])
@pytest.mark.parametrize("tokens, window", [(2, 4), (40, 4), (65, 65), (33, 17)])
def test_the_local_attention_block(mixer, close, same_gradients, tokens, window, fraction):
    """Multi-query, a window of w keys (which its model makes the mask of), rotary positions on part of each head."""
    torch.manual_seed(3)
    dim, heads, head_dim = 12, 3, 8
    theirs = attention(dim, heads, head_dim, fraction, window)
    ours = mixer(
        "sliding_window",
        dim,
        heads,
        kv_heads=1,
        head_dim=head_dim,
        window=window,
        bias=True,
        rotary=True,
        rotary_fraction=fraction,
    )
    pairs = {f"{n}.{p}": getattr(getattr(theirs, f"{n}_proj"), p) for n in "qkvo" for p in ("weight", "bias")}
    ours.fill(pairs)
    x = torch.randn(2, tokens, dim, dtype=torch.float64, requires_grad=True)
    place = torch.arange(tokens)
    distance = place[:, None] - place[None]
    mask = torch.zeros(tokens, tokens, dtype=torch.float64).masked_fill((distance < 0) | (distance >= window), -torch.inf)
    expected, _ = theirs(x, place.expand(2, -1), mask.expand(2, 1, -1, -1))
    got = ours(x)
    # The package takes the softmax and the positions' angles in float32.
    close(got, expected, 1e-5)
    same_gradients(got, expected, [x] + [ours.parameters[n] for n in pairs], [x, *pairs.values()], 1e-4)
    decoded = torch.cat([ours.resume(x[:, t : t + 1].detach()) for t in range(tokens)], 1)
    close(decoded, expected, 1e-5)
