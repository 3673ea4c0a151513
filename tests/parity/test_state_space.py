"""mamba and mamba2 against transformers' mixers (their PyTorch paths), weights copied."""

import pytest
import torch
from transformers.cache_utils import DynamicCache
from transformers.models.mamba.configuration_mamba import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer
from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

TOLERANCE = 5e-5  # theirs computes partly in float32
DIM = 24


def make_mamba(**settings):
    config = MambaConfig(hidden_size=DIM, num_hidden_layers=1, intermediate_size=48, use_mambapy=False, **settings)
    return config, MambaMixer(config, 0).eval()


def mamba_weights(theirs):
    return {
        "in.weight": theirs.in_proj.weight,
        "conv.weight": theirs.conv1d.weight,
        "conv.bias": theirs.conv1d.bias,
        "select.weight": theirs.x_proj.weight,
        "step.weight": theirs.dt_proj.weight,
        "step_bias": theirs.dt_proj.bias,
        "a_log": theirs.A_log,
        "skip": theirs.D,
        "out.weight": theirs.out_proj.weight,
    }


def make_mamba2(groups=1, **settings):
    config = Mamba2Config(
        hidden_size=DIM, num_hidden_layers=1, num_heads=4, head_dim=12, n_groups=groups, chunk_size=16, **settings
    )
    return config, Mamba2Mixer(config, 0).eval()


def mamba2_weights(theirs):
    return {
        "in.weight": theirs.in_proj.weight,
        "conv.weight": theirs.conv1d.weight,
        "conv.bias": theirs.conv1d.bias,
        "a_log": theirs.A_log,
        "skip": theirs.D,
        "step_bias": theirs.dt_bias,
        "norm.weight": theirs.norm.weight,
        "out.weight": theirs.out_proj.weight,
    }


def compare(ours, theirs, weights, length, close, same_gradients):
    ours.fill(weights)
    x = torch.randn(2, length, DIM, requires_grad=True)
    y, expected = ours(x), theirs(x)
    close(y, expected, TOLERANCE)
    names = list(weights)
    same_gradients(y, expected, [x, *(ours.parameters[n] for n in names)], [x, *weights.values()], TOLERANCE * 10)
    return x.detach(), expected.detach()


def hand_over(ours, theirs, config, x, expected, close):
    """Theirs reads a prompt and decodes from its cache; ours does so from its state."""
    cut = x.shape[1] // 2
    if cut == 0:
        return
    with torch.no_grad():
        cache = DynamicCache(config=config)
        parts = [theirs(x[:, :cut], cache_params=cache)]
        parts += [theirs(x[:, t : t + 1], cache_params=cache) for t in range(cut, x.shape[1])]
        close(torch.cat(parts, 1), expected, TOLERANCE * 10)
        mine = [ours.resume(x[:, :cut])] + [ours.resume(x[:, t : t + 1]) for t in range(cut, x.shape[1])]
    close(torch.cat(mine, 1), torch.cat(parts, 1), TOLERANCE * 10)
    close(ours.state()["scan_state"].flatten(), their_state(cache, ours).flatten(), TOLERANCE * 10)


def their_state(cache, ours):
    state = cache.get_recurrent_state(0)
    return state.transpose(2, 3) if state.dim() == 4 else state  # Mamba-2's is [B, H, P, N]


@pytest.mark.parametrize("length", [1, 5, 60])
@pytest.mark.parametrize("step_range", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("size", [4, 16])
def test_mamba(mixer, close, same_gradients, length, step_range, size):
    torch.manual_seed(1)
    config, theirs = make_mamba(state_size=size)
    with torch.no_grad():
        theirs.A_log += torch.tensor(step_range).log()  # decays 0.01 to 10 times as strong
        theirs.D.normal_()
    ours = mixer("mamba", DIM, 1, state=size, float64=False)
    x, expected = compare(ours, theirs, mamba_weights(theirs), length, close, same_gradients)
    hand_over(ours, theirs, config, x, expected, close)


@pytest.mark.parametrize("length", [1, 5, 60])
@pytest.mark.parametrize("step_range", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("groups", [1, 2])
def test_mamba2(mixer, close, same_gradients, length, step_range, groups):
    torch.manual_seed(2)
    config, theirs = make_mamba2(groups, state_size=16)
    with torch.no_grad():
        theirs.A_log += torch.tensor(step_range).log()
        theirs.D.normal_()
        theirs.norm.weight.normal_()
    ours = mixer("mamba2", DIM, 4, state=16, groups=groups, float64=False)
    x, expected = compare(ours, theirs, mamba2_weights(theirs), length, close, same_gradients)
    hand_over(ours, theirs, config, x, expected, close)
