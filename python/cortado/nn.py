"""Every mechanism as a torch.nn.Module: cortado.nn.Macchiato(dim, heads=8, latents=128, window=129).

Classes come from the program's registry, one a mechanism, with its settings as keyword arguments: `help(cortado.nn.GLA)`
says which there are, what they may be, and what they are unless given. All are called the same way:

    y, state = layer(x)                  x [B, T, dim] -> y [B, T, dim]; the state after the last token
    y, state = layer(x, state)           goes on from a state, for any T >= 1
    y, state = layer(x, cu_seqlens=...)  packed sequences: x [1, T, dim], boundaries int64 [N+1]; the state has N rows
    y, _ = layer(x, state=False)         no state is kept: training

Names and values of the weights are those of the program's checkpoints."""

from __future__ import annotations

import functools
import inspect
import json
import typing

import torch

from cortado._parts import Part, State, be_tensor

_UPPER = {"gla": "GLA", "abc": "ABC", "kda": "KDA", "rg_lru": "RGLRU", "lola": "LoLA", "lolcats": "LoLCATs", "rwkv4": "RWKV4",
          "rwkv6": "RWKV6", "hgrn2": "HGRN2", "h3": "H3", "s5": "S5"}  # fmt: skip
_ROTARY = ("rotary", "rope_theta", "rope_scaling")
_SIZES = {"dim": 64, "heads": 4}  # of the models for which documentation says what settings are unless given


class Mixer(Part):
    """One layer's mixing over time: x [B, T, dim] -> [B, T, dim].

    heads: where the settings do not say otherwise; a mechanism without heads takes no notice. layer, layers: its place in a model, which some initialisations depend
    on. causal=False: the bidirectional form of mechanisms that have one; it has no state. rotary: rotary positions on
    queries and keys, with rope_theta and rope_scaling as in a model's config; None: as the mechanism has them. Settings
    that are wrong, or that the mechanism does not have: ValueError."""

    mechanism: str = ""

    def __init__(self, dim: int, heads: int = 1, *, layer: int = 0, layers: int = 1, causal: bool = True,
                 rotary: bool | None = None, rope_theta: float | None = None,
                 rope_scaling: dict[str, typing.Any] | None = None,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                 **settings: typing.Any) -> None:  # fmt: skip
        if not self.mechanism:
            raise TypeError("cortado.nn.Mixer is the base of all: use one of " + ", ".join(__all__[3:]))
        if rotary is False or (rotary is None and _default(self.mechanism, "rotary") is False):
            for name, value in (("rope_theta", rope_theta), ("rope_scaling", rope_scaling)):
                if value is not None and value != _default(self.mechanism, name):
                    raise ValueError(f"[{self.mechanism}] {name} is for rotary positions: give rotary=True as well")
        settings |= {"rotary": rotary, "rope_theta": rope_theta, "rope_scaling": rope_scaling}
        absent = {*_ROTARY, *_of_sizes(self.mechanism)}
        given = {name: value for name, value in settings.items() if value is not None or name not in absent}
        text = {"part": "mixer", "settings": {"mixer": self.mechanism, **given}, "dim": dim, "heads": heads, "layer": layer,
                "layers": layers, "causal": causal}  # fmt: skip
        super().__init__(text, device, dtype)
        self.dim, self.causal = dim, causal

    def forward(self, x: torch.Tensor, state: State | typing.Literal[False] | None = None,
                cu_seqlens: torch.Tensor | None = None) -> tuple[torch.Tensor, State | None]:
        """y [B, T, dim], and the state after it: None of a bidirectional layer, and where `state` is False."""
        be_tensor(x, "x", self.mechanism)
        if x.dim() != 3 or x.shape[2] != self.dim or not x.is_floating_point():
            raise ValueError(f"[{self.mechanism}] expected x of shape [B, T, {self.dim}], got {x.dtype} {list(x.shape)}")
        if cu_seqlens is not None:
            be_tensor(cu_seqlens, "cu_seqlens", self.mechanism)
        if state is None and self.causal:
            rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
            state = self.zero_state(rows, x.dtype, x.device)
        return self.run([x], None if state is False else state, cu_seqlens)

    def extra_repr(self) -> str:
        part = json.loads(self.part)
        given = {key: value for key, value in part["settings"].items() if key != "mixer"}
        return ", ".join([str(self.dim), f"heads={part['heads']}"] + [f"{key}={value!r}" for key, value in given.items()])


@functools.cache
def _registry(dim: int = _SIZES["dim"], heads: int = _SIZES["heads"]) -> dict[str, dict[str, typing.Any]]:
    return {mechanism["name"]: mechanism for mechanism in json.loads(torch.ops.cortado.mechanisms(dim, heads))}


@functools.cache
def _of_sizes(mechanism: str) -> frozenset[str]:
    """Settings that depend on the layer's sizes unless they are given."""
    others = [_registry(2 * _SIZES["dim"], _SIZES["heads"]), _registry(_SIZES["dim"], 2 * _SIZES["heads"])]
    defaults = [{it["name"]: it["default"] for it in listed[mechanism]["settings"]} for listed in (_registry(), *others)]
    return frozenset(name for name, default in defaults[0].items() if any(other[name] != default for other in defaults[1:]))


def _default(mechanism: str, setting: str) -> typing.Any:
    return next((it["default"] for it in _registry()[mechanism]["settings"] if it["name"] == setting), None)


def class_name(mechanism: str) -> str:
    """"gated_delta_net" -> "GatedDeltaNet"."""
    return _UPPER.get(mechanism) or "".join(word.capitalize() for word in mechanism.split("_"))


def _describe(facts: dict[str, typing.Any]) -> str:
    forms = [word for word in ("causal", "bidirectional") if facts[word]]
    lines = [f"{facts['equation']}", "", f"{facts['paper']}. Forms: {', '.join(forms)}. State a layer: {facts['state']} numbers.",
             "", "Settings, with what they are unless given where dim=64 and heads=4:", ""]  # fmt: skip
    for setting in facts["settings"]:
        expected = " | ".join(repr(word) for word in setting["words"]) or setting["expected"]
        unless = "" if setting["default"] is None else f"; {setting['default']!r}"
        unless += " (of these sizes)" if setting["name"] in _of_sizes(facts["name"]) else ""
        lines.append(f"    {setting['name']}: {expected}{unless}")
    return "\n".join(lines) + "\n\n" + "Arguments that all mechanisms have: see cortado.nn.Mixer."


def _signature(facts: dict[str, typing.Any]) -> inspect.Signature:
    """What each setting is unless given; None where that depends on the sizes."""
    defaults = {it["name"]: None if it["name"] in _of_sizes(facts["name"]) else it["default"] for it in facts["settings"]}
    common = [it for it in inspect.signature(Mixer.__init__).parameters.values() if it.name not in (*_ROTARY, "settings")]
    settings = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default) for name, default in defaults.items()
                if name not in {it.name for it in common}]  # fmt: skip
    return inspect.Signature([*common, *settings])


@functools.cache
def _class(mechanism: str) -> type[Mixer]:
    facts = _registry()[mechanism]
    made = type(class_name(mechanism), (Mixer,), {"mechanism": mechanism, "__doc__": _describe(facts), "__module__": __name__})
    made.__signature__ = _signature(facts)  # type: ignore[attr-defined]
    return made


def mechanisms() -> list[str]:
    """The names of all, as a config's "mixer" has them."""
    return list(_registry())


def mixer(mechanism: str, dim: int, heads: int = 1, **arguments: typing.Any) -> Mixer:
    """The same by a mechanism's name: mixer("gla", 64, heads=4)."""
    if mechanism not in _registry():
        raise ValueError(f"[mixer] no mechanism {mechanism!r}; there are: {', '.join(mechanisms())}")
    return _class(mechanism)(dim, heads, **arguments)


__all__ = ["Mixer", "mixer", "mechanisms", *map(class_name, _registry())]


def __getattr__(name: str) -> type[Mixer]:
    for mechanism in _registry():
        if class_name(mechanism) == name:
            return _class(mechanism)
    raise AttributeError(f"module 'cortado.nn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
