"""Every mechanism as a torch.nn.Module: cortado.nn.Macchiato(dim, heads=8, latents=128, window=129).

There is one class per mechanism of the program's registry, with the mechanism's settings as keyword arguments:
`help(cortado.nn.GLA)` lists their types, meanings and defaults. All classes are called in one way:

    y, state = layer(x)                  x [B, T, dim] -> y [B, T, dim]; the state after the last token
    y, state = layer(x, state)           goes on from a state, for any T >= 1
    y, state = layer(x, cu_seqlens=...)  packed sequences: x [1, T, dim], bounds int64 [N + 1]; the state has N rows
    y, _ = layer(x, state=False)         no state is kept: training

Names and values of the weights are those of the program's checkpoints. Types stand in nn.pyi, which scripts/settings.py
writes."""

from __future__ import annotations

from cortado import _mixers
from cortado._mixers import Mixer, class_name, mechanisms, mixer
from cortado._mixers import registry as _registry

__all__ = ["Mixer", "mixer", "mechanisms", *_mixers.class_names()]


def __getattr__(name: str) -> type[Mixer]:
    for mechanism in _registry():
        if class_name(mechanism) == name:
            return _mixers.class_of(mechanism)
    raise AttributeError(f"module 'cortado.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
