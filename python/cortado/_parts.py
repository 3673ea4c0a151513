"""Parts of C++ models as torch modules: weights are Python's, what they compute is C++'s (src/cortado/models/part.h)."""

from __future__ import annotations

import json
import keyword
import typing

import torch

from cortado import _library

State = dict[str, torch.Tensor]
_AUTOCAST = {torch.bfloat16: "bfloat16", torch.float16: "float16"}

_library.library()


def one_line(error: Exception) -> str:
    """A C++ error's own line, without what torch puts behind it."""
    return str(error).partition("\nException raised from")[0].strip()


def checked(make: typing.Callable[..., typing.Any], *arguments: typing.Any) -> typing.Any:
    """What C++ makes of settings: where it refuses them, a ValueError with its line."""
    try:
        return make(*arguments)
    except RuntimeError as error:
        raise ValueError(one_line(error)) from None


def _attribute(name: str) -> str:
    """A weight's name as an attribute: "in" is a word of Python's, which torch.export would write into its code."""
    return name + "_" if keyword.iskeyword(name) else name


class Keywords(torch.nn.Module):
    """A module whose weights may be called as words of Python's are: getattr(it, "in") is it.in_."""

    def __getattr__(self, name: str) -> typing.Any:
        return super().__getattr__(_attribute(name))

    def __setattr__(self, name: str, value: typing.Any) -> None:
        super().__setattr__(_attribute(name), value)


class Linear(torch.nn.Linear):
    """A linear map of a part, which reads its weights; adapters that are put in its place are added to them."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        torch.nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight)
        self.register_parameter("bias", bias if bias is None or isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias))


class Embedding(torch.nn.Embedding):
    """An embedding of a part, which reads its weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        torch.nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.padding_idx = self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, False
        self.weight = torch.nn.Parameter(weight)


class Weights(Keywords):
    """Some weights of a part, by their names."""


def adapted(module: typing.Any) -> torch.Tensor:
    """The weight of a linear map in whose place a library of adapters (peft) has put a layer of its own: with what its
    active adapters add."""
    name = type(module).__name__
    if not hasattr(module, "get_delta_weight") or not hasattr(module, "active_adapters"):
        raise TypeError(f"a linear map was replaced by a {name}, whose weight is not known: of adapters LoRA is supported")
    if any(getattr(module, "use_dora", {}).values()):
        raise ValueError("adapters with DoRA are not sums of weights: use plain LoRA")
    weight: torch.Tensor = module.get_base_layer().weight
    if module.disable_adapters or module.merged:
        return weight
    for adapter in module.active_adapters:
        if adapter not in module.lora_A:
            continue
        dropout = module.lora_dropout[adapter]
        if module.training and getattr(dropout, "p", 0.0) > 0:
            raise ValueError(f"[lora] adapter {adapter!r} has lora_dropout {dropout.p}: its product is added to the weight, "
                             "which no dropout of the input can reach: use lora_dropout=0")
        weight = weight + module.get_delta_weight(adapter).to(weight.dtype)
    return weight


class Part(Keywords):
    """The base: a C++ part with its weights as parameters by the names that they have in checkpoints."""

    def __init__(self, part: dict[str, typing.Any], device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.part = json.dumps(part)
        # Of weights that come from elsewhere none are drawn.
        drawn = str(device) != "meta" and torch.get_default_device().type != "meta"
        made = checked(torch.classes.cortado.Part, self.part, drawn)
        facts = json.loads(made.facts())
        device = device or torch.get_default_device()
        weights = {name: weight.to(device=device, dtype=dtype) for name, weight in made.weights().items()}
        self._draws: bool = facts["draws"]
        self._foreseen: bool = facts["foreseen"]
        self._state_names: tuple[str, ...] = tuple(facts["state"])
        self._names = tuple(tuple(map(_attribute, name.split("."))) for name in weights)
        self._add(weights, set(facts["maps"]), set(facts["buffers"]))
        self._other_names = {".".join(map(_attribute, name.split("."))): name for name in weights}
        if any(attribute != name for attribute, name in self._other_names.items()):
            self.register_state_dict_post_hook(_as_in_checkpoints)
            self.register_load_state_dict_pre_hook(_as_attributes)

    def _add(self, weights: dict[str, torch.Tensor], linear: set[str], buffers: set[str]) -> None:
        for name, weight in weights.items():
            place, _, last = name.rpartition(".")
            if place in linear and last in ("weight", "bias"):
                if last == "weight":
                    self._place(place, Linear(weight, weights.get(f"{place}.bias")))
            elif place in ("embedding", "positions") and last == "weight":
                self._place(place, Embedding(weight))
            elif name in buffers:
                self._holder(place).register_buffer(_attribute(last), weight)
            else:
                self._holder(place).register_parameter(_attribute(last), torch.nn.Parameter(weight))

    def _place(self, place: str, module: torch.nn.Module) -> None:
        holder, _, last = place.rpartition(".")
        self._holder(holder).add_module(_attribute(last), module)

    def _holder(self, place: str) -> torch.nn.Module:
        holder: torch.nn.Module = self
        for name in map(_attribute, place.split(".") if place else ()):
            if name not in holder._modules:
                holder.add_module(name, Weights())
            holder = getattr(holder, name)
        return holder

    def _weights(self) -> list[torch.Tensor]:
        found = []
        for *path, last in self._names:
            module: typing.Any = self
            for name in path:
                module = getattr(module, name)
            known = isinstance(module, (Linear, Embedding)) or last not in ("weight", "bias") or not path
            if known or not hasattr(module, "get_base_layer"):
                found.append(getattr(module, last))
            else:
                found.append(adapted(module) if last == "weight" else module.get_base_layer().bias)
        return found

    def run(self, inputs: list[torch.Tensor], state: State | None, cu_seqlens: torch.Tensor | None,
            part: str | None = None) -> tuple[torch.Tensor, State | None]:
        """One call of the operator; `part`: another text for the same weights."""
        unforeseen = state is not None and not self._foreseen  # how large the state will be
        if torch.compiler.is_compiling() and (unforeseen or (self._draws and self.training)):
            return self._run_eagerly(inputs, state, cu_seqlens, part)
        return self._run(inputs, state, cu_seqlens, part)

    # A gradient would draw other numbers than the call did.
    @torch.compiler.disable
    def _run_eagerly(self, inputs: list[torch.Tensor], state: State | None, cu_seqlens: torch.Tensor | None,
                     part: str | None) -> tuple[torch.Tensor, State | None]:
        return self._run(inputs, state, cu_seqlens, part)

    def _run(self, inputs: list[torch.Tensor], state: State | None, cu_seqlens: torch.Tensor | None,
             part: str | None) -> tuple[torch.Tensor, State | None]:
        device = inputs[0].device.type
        autocast = _AUTOCAST[torch.get_autocast_dtype(device)] if torch.is_autocast_enabled(device) else ""
        if state is not None and tuple(state) != self._state_names:
            raise ValueError(f"[state] expected {', '.join(self._state_names) or 'none'}, got {', '.join(state) or 'no tensor'}")
        tensors = [] if state is None else list(state.values())
        results = torch.ops.cortado.part(part or self.part, autocast, self.training, self._weights(), inputs, tensors,
                                         cu_seqlens)
        return results[0], None if state is None else dict(zip(state, results[1:], strict=True))

    def zero_state(self, rows: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        """The state before the first token, for `rows` sequences: of inputs of this type on this device (the weights' unless
        said)."""
        weight = self._weights()[0]
        dtype, device = dtype or weight.dtype, device or weight.device
        zeros = torch.ops.cortado.part_zero_state(self.part, rows, torch.empty(0, dtype=dtype, device=device))
        return dict(zip(self._state_names, zeros, strict=True))


def _as_in_checkpoints(part: typing.Any, weights: dict[str, typing.Any], prefix: str, _: typing.Any) -> None:
    for attribute, name in part._other_names.items():
        if attribute != name and prefix + attribute in weights:
            weights[prefix + name] = weights.pop(prefix + attribute)


def _as_attributes(part: typing.Any, weights: dict[str, typing.Any], prefix: str, *_: typing.Any) -> None:
    for attribute, name in part._other_names.items():
        if attribute != name and prefix + name in weights:
            weights[prefix + attribute] = weights.pop(prefix + name)


def _fake(part: str, autocast: str, training: bool, weights: list[torch.Tensor], inputs: list[torch.Tensor],
          state: list[torch.Tensor], cu_seqlens: torch.Tensor | None) -> list[torch.Tensor]:
    x = inputs[0]
    kind = json.loads(part)
    mixer_type = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(autocast, weights[0].dtype)
    if kind["part"] == "loss":
        return [x.new_empty((), dtype=torch.float32 if x.dtype != torch.float64 else x.dtype)]
    if kind["part"] == "embedding":
        y = x.new_empty((*x.shape, kind["config"]["dim"]), dtype=weights[0].dtype)
    elif kind["part"] == "logits":
        y = x.new_empty((*x.shape[:-1], kind["config"]["vocabulary"]), dtype=mixer_type)
    elif kind["part"] == "mixer":
        y = x.new_empty(x.shape, dtype=mixer_type if autocast else x.dtype)
    else:
        y = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, mixer_type) if autocast else x.dtype)
    return [y, *_next_state(part, x, state, cu_seqlens)]


def _next_state(part: str, x: torch.Tensor, state: list[torch.Tensor],
                cu_seqlens: torch.Tensor | None) -> list[torch.Tensor]:
    """States of one size stay as they are; of others torch.ops.cortado.part_places says what they become."""
    if not state:
        return []
    shapes = torch.ops.cortado.part_places(part, [s.shape[1] if s.dim() > 1 else 0 for s in state], x.shape[1])
    if cu_seqlens is not None and any(places >= 0 for places in shapes):
        raise RuntimeError("[part] a packed batch leaves caches whose size depends on its lengths: not under tracing")
    return [s.new_empty(s.shape if places < 0 else (s.shape[0], places, *s.shape[2:]))
            for s, places in zip(state, shapes, strict=True)]


def _fake_backward(part: str, autocast: str, training: bool, weights: list[torch.Tensor], inputs: list[torch.Tensor],
                   state: list[torch.Tensor], cu_seqlens: torch.Tensor | None,
                   gradients: list[torch.Tensor | None]) -> list[torch.Tensor]:
    return [x.new_empty(x.shape if x.is_floating_point() else (0,)) for x in (*weights, *inputs, *state)]


torch.library.register_fake("cortado::part", _fake)
torch.library.register_fake("cortado::part_backward", _fake_backward)
