"""The classes of cortado.nn, made from the program's registry of mechanisms."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import json
import operator
import typing

import torch

from cortado import _settings
from cortado._parts import Part, State, be_tensor

_UPPER = {"gla": "GLA", "abc": "ABC", "kda": "KDA", "gdn2": "GDN2", "rg_lru": "RGLRU", "lola": "LoLA", "lolcats": "LoLCATs", "rwkv4": "RWKV4",
          "rwkv6": "RWKV6", "rwkv7": "RWKV7", "hgrn2": "HGRN2", "h3": "H3", "s5": "S5"}  # fmt: skip
_ROTARY = ("rotary", "rope_theta", "rope_scaling")
_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "None": None, "dict[str, Any]": dict[str, typing.Any],
          "Sequence[int]": collections.abc.Sequence[int]}  # fmt: skip


class Mixer(Part):
    """One layer's mixing over time: x [B, T, dim] -> [B, T, dim]. The base of every mechanism's class.

    Args:
        dim: Width D of the input and of the output.
        heads: Heads per layer, unless the settings say otherwise. A mechanism without heads ignores it.
        layer: Number of this layer in its model, from 0. Some initialisations depend on it.
        layers: Layers of that model.
        causal: False: the bidirectional form of mechanisms that have one. It has no state.
        rotary: Rotary positions on queries and keys. None: as the mechanism has them.
        rope_theta: Base of the rotary frequencies, as in a model's config.
        rope_scaling: How rotary frequencies are stretched, as in a model's config.
        device: Device of the weights.
        dtype: Type of the weights.
        **settings: Settings of the mechanism.

    Raises:
        ValueError: A setting is wrong, or is not the mechanism's.

    Example:
        >>> layer = cortado.nn.GLA(64, heads=4)
        >>> y, state = layer(torch.randn(2, 16, 64))
        >>> y, state = layer(torch.randn(2, 1, 64), state)
    """

    mechanism: str = ""

    def __init__(self, dim: int, heads: int = 1, *, layer: int = 0, layers: int = 1, causal: bool = True,
                 rotary: bool | None = None, rope_theta: float | None = None,
                 rope_scaling: dict[str, typing.Any] | None = None,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None,
                 **settings: typing.Any) -> None:  # fmt: skip
        if not self.mechanism:
            raise TypeError("cortado.nn.Mixer is the base of all: use one of " + ", ".join(class_names()))
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
        """Mixes a sequence, or continues one.

        Args:
            x: [B, T, dim], T >= 1; with cu_seqlens [1, T, dim].
            state: State after the tokens before x. None: there are none. False: no state is made, as for training.
            cu_seqlens: Bounds of packed sequences, int64 [N + 1] from 0 to T. The state has N rows.

        Returns:
            y, shaped like x, and the state after the last token: None for a bidirectional layer and for `state=False`.

        Raises:
            TypeError: x is not a tensor.
            ValueError: x has another shape or is not of a floating-point type, or the state is another layer's.
        """
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
def registry(dim: int = _settings.SIZES["dim"], heads: int = _settings.SIZES["heads"]) -> dict[str, dict[str, typing.Any]]:
    """What the program says of each mechanism, for layers of these sizes."""
    return {mechanism["name"]: mechanism for mechanism in json.loads(torch.ops.cortado.mechanisms(dim, heads))}


@functools.cache
def _of_sizes(mechanism: str) -> frozenset[str]:
    """Settings whose defaults depend on the layer's sizes."""
    dim, heads = _settings.SIZES["dim"], _settings.SIZES["heads"]
    others = [registry(2 * dim, heads), registry(dim, 2 * heads), registry(4 * dim, 1)]
    defaults = [{it["name"]: it["default"] for it in listed[mechanism]["settings"]} for listed in (registry(), *others)]
    return frozenset(name for name, default in defaults[0].items() if any(other[name] != default for other in defaults[1:]))


def facts_of(mechanism: str) -> dict[str, typing.Any]:
    """What the registry says of a mechanism, with the meanings of its settings."""
    known, sizes = _settings.meanings().get(mechanism, {}), _of_sizes(mechanism)
    facts = registry()[mechanism]
    # What the registry says goes before what was written down.
    settings = [{**known.get(it["name"], {}), **it, "by_sizes": it["name"] in sizes} for it in facts["settings"]]
    return {**facts, "settings": settings}


def _default(mechanism: str, setting: str) -> typing.Any:
    return next((it["default"] for it in registry()[mechanism]["settings"] if it["name"] == setting), None)


def class_name(mechanism: str) -> str:
    """The name of a mechanism's class: "gated_delta_net" -> "GatedDeltaNet"."""
    return _UPPER.get(mechanism) or "".join(word.capitalize() for word in mechanism.split("_"))


def class_names() -> list[str]:
    """The names of all classes, in the registry's order."""
    return [class_name(mechanism) for mechanism in registry()]


def _annotation(setting: dict[str, typing.Any]) -> typing.Any:
    names = _settings.types_of(setting)
    if names[0].startswith("Literal"):
        words = typing.Literal[tuple(setting["words"])]  # type: ignore[valid-type]
        return words if len(names) == 1 else words | None
    return functools.reduce(operator.or_, [_TYPES[name] for name in names])


def _signature(facts: dict[str, typing.Any]) -> inspect.Signature:
    """The default of each setting; None where that depends on the sizes."""
    hints = typing.get_type_hints(Mixer.__init__)
    common = [it.replace(annotation=hints.get(it.name, it.empty)) for it in inspect.signature(Mixer.__init__).parameters.values()
              if it.name not in (*_ROTARY, "settings")]  # fmt: skip
    settings = [inspect.Parameter(it["name"], inspect.Parameter.KEYWORD_ONLY, default=None if it["by_sizes"] else it["default"],
                                  annotation=_annotation(it))
                for it in facts["settings"] if it["name"] not in {it.name for it in common}]  # fmt: skip
    return inspect.Signature([*common, *settings])


@functools.cache
def class_of(mechanism: str) -> type[Mixer]:
    """A mechanism's class."""
    facts, name = facts_of(mechanism), class_name(mechanism)
    text = _settings.docstring(facts, name)
    made = type(name, (Mixer,), {"mechanism": mechanism, "__doc__": text, "__module__": "cortado.nn"})
    made.__signature__ = _signature(facts)  # type: ignore[attr-defined]
    return made


def mechanisms() -> list[str]:
    """Returns the names of all mechanisms, as a config's "mixer" has them."""
    return list(registry())


def mixer(mechanism: str, dim: int, heads: int = 1, **arguments: typing.Any) -> Mixer:
    """Makes a layer by its mechanism's name.

    Args:
        mechanism: One of mechanisms(), for example "gla".
        dim: Width D of the input and of the output.
        heads: Heads per layer.
        **arguments: The other arguments of the mechanism's class.

    Returns:
        The layer, as its class makes it.

    Raises:
        ValueError: There is no such mechanism, or a setting is wrong.

    Example:
        >>> layer = cortado.nn.mixer("gla", 64, heads=4)
    """
    if mechanism not in registry():
        raise ValueError(f"[mixer] no mechanism {mechanism!r}; there are: {', '.join(mechanisms())}")
    return class_of(mechanism)(dim, heads, **arguments)
