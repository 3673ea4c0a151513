"""Parts of C++ models as torch modules: Python holds the weights, C++ computes (src/cortado/models/part.h)."""

from __future__ import annotations

import itertools
import json
import keyword
import typing

import torch

from cortado import _library

State = dict[str, torch.Tensor]
_AUTOCAST = {torch.bfloat16: "bfloat16", torch.float16: "float16"}

_library.library()


def one_line(error: Exception) -> str:
    """Returns the message of a C++ error without the trace that torch appends."""
    return str(error).partition("\nException raised from")[0].strip()


def be_tensor(x: typing.Any, name: str = "what is given to it", where: str = "part") -> None:
    """Raises TypeError for other types. torch's own error would print the whole value."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"[{where}] {name} must be a tensor, got {type(x).__name__}")


def checked(make: typing.Callable[..., typing.Any], *arguments: typing.Any) -> typing.Any:
    """Calls `make`; turns C++ errors into ValueError with their message."""
    try:
        return make(*arguments)
    except RuntimeError as error:
        raise ValueError(one_line(error)) from None


def _attribute(name: str) -> str:
    """Returns a weight's name as an attribute. Python keywords such as "in" get a "_", because torch.export writes them as code."""
    return name + "_" if keyword.iskeyword(name) else name


class Keywords(torch.nn.Module):
    """A module whose weights may have the names of Python keywords: getattr(it, "in") is it.in_."""

    def __getattr__(self, name: str) -> typing.Any:
        return super().__getattr__(_attribute(name))

    def __setattr__(self, name: str, value: typing.Any) -> None:
        super().__setattr__(_attribute(name), value)


class Linear(torch.nn.Linear):
    """A linear map of a part. C++ reads its weights directly, unless the module is replaced or hooked; then it is called."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        torch.nn.Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight)
        self.register_parameter("bias", bias if bias is None or isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias))


class Embedding(torch.nn.Embedding):
    """An embedding of a part, read or called like Linear."""

    bias: torch.Tensor | None = None  # for a tied head, whose bias other code looks for here

    def __init__(self, weight: torch.Tensor) -> None:
        torch.nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.padding_idx = self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, False
        self.weight = torch.nn.Parameter(weight)


class Weights(Keywords):
    """A holder of some of a part's weights. It is never called."""

    def _refuse_hook(self, *_: typing.Any, **__: typing.Any) -> typing.NoReturn:
        names = ", ".join([*self._parameters, *self._modules])
        raise TypeError(f"[module] what holds {names} is never called, so a hook of it would never be either: hook the layer or "
                        "block that it belongs to, or a linear map or embedding in it")  # fmt: skip

    register_forward_hook = register_forward_pre_hook = register_backward_hook = _refuse_hook
    register_full_backward_hook = register_full_backward_pre_hook = _refuse_hook


class Place(typing.NamedTuple):
    """A module within a part: its place and its weights."""

    name: str  # in checkpoints
    parent: int  # index among the places; -1: the part
    attribute: str
    called: bool  # whether it is a linear map or an embedding
    weights: tuple[tuple[int, str], ...]  # index and attribute of each of its weights


def _hooked() -> bool:
    """Whether there are hooks on all modules."""
    module = torch.nn.modules.module
    return bool(module._global_forward_hooks or module._global_forward_pre_hooks or module._global_backward_hooks
                or module._global_backward_pre_hooks)  # fmt: skip


def plain(module: torch.nn.Module) -> bool:
    """Whether a linear map or embedding has no hooks and is not replaced, so its weights can be read instead of calling it."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in (Linear, Embedding) and not hooks and "forward" not in module.__dict__ and not _hooked()


def adds_only(module: typing.Any) -> bool:
    """Whether this is a LoRA layer of peft that only adds products to the weight."""
    if not hasattr(module, "get_delta_weight") or not hasattr(module, "lora_A") or module._forward_pre_hooks:
        return False
    dropouts = [module.lora_dropout[adapter] for adapter in module.active_adapters if adapter in module.lora_dropout]
    drops = module.training and any(getattr(dropout, "p", 0.0) > 0 for dropout in dropouts)
    others = module.use_dora | module.lora_bias | getattr(module, "lora_variant", {})
    return plain(module.get_base_layer()) and not drops and not any(others.values()) and not module._forward_hooks


def adapted(module: typing.Any) -> torch.Tensor:
    """Returns the weight of such a layer plus the products of the active adapters."""
    weight: torch.Tensor = module.get_base_layer().weight
    if module.disable_adapters or module.merged:
        return weight
    for adapter in module.active_adapters:
        if adapter in module.lora_A or adapter in module.lora_embedding_A:
            weight = weight + module.get_delta_weight(adapter).to(weight.dtype)
    return weight


def tied_weight(module: typing.Any) -> torch.Tensor:
    """Returns the weight of an embedding that is also the head, or of the module in its place."""
    if hasattr(module, "get_base_layer") and not isinstance(module, torch.nn.Embedding):
        if adds_only(module):
            return adapted(module)
        if not hasattr(module, "get_merged_weights"):
            raise ValueError("[lora] the embedding is the head as well: of its adapters only sums can be read there (no DoRA, "
                             "no adapter_names)")  # fmt: skip
    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor):
        raise TypeError(f"[module] the embedding is the head as well, and the {type(module).__name__} in its place has no weight")
    return weight


# Running C++ calls, with their parts and the bounds of packed sequences. C++ calls back for modules that replace linear maps
# and embeddings.
_calls: dict[int, tuple[Part, torch.Tensor | None]] = {}
_numbers = itertools.count()


def _inner(call: int, place: str, x: torch.Tensor) -> torch.Tensor:
    part, bounds = _calls[call]
    module: typing.Any = part
    for name in place.split("."):
        module = getattr(module, name)
    # peft's adapter_names choose an adapter for every row.
    adapters = [hook.keywords["adapter_names"] for hook in module._forward_pre_hooks.values()
                if "adapter_names" in (getattr(hook, "keywords", None) or {})]  # fmt: skip
    if not adapters or bounds is None or bounds.shape[0] - 1 != len(adapters[0]):
        return module(x)
    lengths = bounds.diff()
    there = torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]
    rows = x.new_zeros((*there.shape, *x.shape[2:]))
    rows[there] = x[0]
    return module(rows)[there][None]


_own = torch.library.Library("cortado", "IMPL")
_own.impl("inner", _inner, "CompositeImplicitAutograd")


EMBEDDINGS = ("embedding", "positions")


def _places_of(weights: list[str], called: set[str]) -> tuple[Place, ...]:
    """Returns the modules of a part with weights of these names, parents before children. The first is the part itself."""
    own: dict[str, list[tuple[int, str]]] = {"": []}
    for number, weight in enumerate(weights):
        holder, _, last = weight.rpartition(".")
        parts = holder.split(".") if holder else []
        for length in range(1, len(parts) + 1):
            own.setdefault(".".join(parts[:length]), [])
        own[holder].append((number, _attribute(last)))
    numbers = {name: number for number, name in enumerate(own)}
    return tuple(Place(name, numbers[name.rpartition(".")[0]], _attribute(name.rpartition(".")[2]), name in called, tuple(weights))
                 for name, weights in own.items())  # fmt: skip


class Part(Keywords):
    """The base class: a C++ part whose weights are parameters with the names that they have in checkpoints."""

    def __init__(self, part: dict[str, typing.Any], device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.part = json.dumps(part)
        # Weights on "meta" will be loaded from elsewhere, so none are drawn.
        drawn = str(device) != "meta" and torch.get_default_device().type != "meta"
        made = checked(torch.classes.cortado.Part, self.part, drawn)
        facts = json.loads(made.facts())
        # Converts all to one type: some weights begin as float32 whatever torch's default is.
        device, dtype = device or torch.get_default_device(), dtype or torch.get_default_dtype()
        weights = {name: weight.to(device=device, dtype=dtype) for name, weight in made.weights().items()}
        # The role of each of its own parameters, for cortado.parameter_groups.
        self.roles: dict[str, str] = {".".join(map(_attribute, name.split("."))): role for name, role in facts["roles"].items()}
        self._draws: bool = facts["draws"]
        self._foreseen: bool = facts["foreseen"]
        self._state_names: tuple[str, ...] = tuple(facts["state"])
        self._add(weights, set(facts["maps"]), set(facts["buffers"]))
        self._places = _places_of(list(weights), {*facts["maps"], *EMBEDDINGS})
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
            elif place in EMBEDDINGS and last == "weight":
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

    def _gather(self, head: bool = False) -> tuple[list[torch.Tensor], list[str]]:
        """Returns the weights, and the names of the places whose modules must be called. head: the embedding is read as the head."""
        compiling = torch.compiler.is_compiling()
        modules: list[typing.Any] = [self]
        weights: list[typing.Any] = [None] * sum(len(place.weights) for place in self._places)
        called = []
        for place in self._places:
            if place.name:
                holder = modules[place.parent]
                inside = holder._modules.get(place.attribute)
                modules.append(getattr(holder, place.attribute) if inside is None else inside)
            module = modules[-1]
            if not place.called:
                # Also allows a copy that peft trains as a whole (modules_to_save), which shows its own weights.
                if place.name and not isinstance(module, Weights) and not hasattr(module, "original_module"):
                    raise TypeError(f"[module] {place.name} is now a {type(module).__name__}: only linear maps and embeddings can "
                                    "be replaced")  # fmt: skip
            elif not plain(module):
                if compiling and adds_only(module):
                    sums = {"weight": adapted(module), "bias": getattr(module.get_base_layer(), "bias", None)}
                    for number, name in place.weights:
                        weights[number] = sums[name]
                    continue
                called.append(place.name)
                if not (head and place.name == "embedding" and all(it.name != "head" for it in self._places)):
                    continue
                weights[place.weights[0][0]] = tied_weight(module)
                continue
            for number, name in place.weights:
                weights[number] = getattr(module, name)
        return self._filled(weights), called

    @staticmethod
    def _filled(weights: list[typing.Any]) -> list[torch.Tensor]:
        """Replaces the weights of called modules by empty tensors of the others' type and device."""
        known = next((weight for weight in weights if weight is not None), None)
        none = torch.empty(0) if known is None else known.detach().new_empty(0)
        return [none if weight is None else weight for weight in weights]

    def run(self, inputs: list[torch.Tensor], state: State | None, cu_seqlens: torch.Tensor | None,
            part: str | None = None) -> tuple[torch.Tensor, State | None]:
        """Calls the operator. `part`: another part's description for the same weights."""
        for x in (*inputs, *(state.values() if state else ()), *(() if cu_seqlens is None else (cu_seqlens,))):
            be_tensor(x)
        weights, called = self._gather(head=part is not None)
        unforeseen = state is not None and not self._foreseen  # the state's new size is unknown
        if torch.compiler.is_compiling() and (unforeseen or (self._draws and self.training) or called):
            return self._run_eagerly(inputs, state, cu_seqlens, part)
        return self._run(weights, called, inputs, state, cu_seqlens, part)

    # Not compiled: backward would draw other random numbers than the call did, and modules in between are Python's.
    @torch.compiler.disable
    def _run_eagerly(self, inputs: list[torch.Tensor], state: State | None, cu_seqlens: torch.Tensor | None,
                     part: str | None) -> tuple[torch.Tensor, State | None]:
        return self._run(*self._gather(head=part is not None), inputs, state, cu_seqlens, part)

    def _run(self, weights: list[torch.Tensor], called: list[str], inputs: list[torch.Tensor], state: State | None,
             cu_seqlens: torch.Tensor | None, part: str | None) -> tuple[torch.Tensor, State | None]:
        device = inputs[0].device.type
        autocast = _AUTOCAST[torch.get_autocast_dtype(device)] if torch.is_autocast_enabled(device) else ""
        if state is not None and tuple(state) != self._state_names:
            raise ValueError(f"[state] expected {', '.join(self._state_names) or 'none'}, got {', '.join(state) or 'no tensor'}")
        tensors = [] if state is None else list(state.values())
        call = (part or self.part, autocast, self.training, weights, inputs, tensors, cu_seqlens)
        if called:
            number = next(_numbers)
            _calls[number] = (self, cu_seqlens)
            try:
                results = torch.ops.cortado.part_calling(*call, called, number)
            finally:
                del _calls[number]
        else:
            results = torch.ops.cortado.part(*call)
        return results[0], None if state is None else dict(zip(state, results[1:], strict=True))

    def zero_state(self, rows: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        """Returns the state before the first token of `rows` sequences, for inputs of this type on this device (default: those
        of the weights)."""
        weight = self._gather()[0][0]
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
        width = torch.ops.cortado.part_width(part, x.shape[-1])
        y = x.new_empty((*x.shape[:-1], width), dtype=torch.promote_types(x.dtype, mixer_type) if autocast else x.dtype)
    return [y, *_next_state(part, x, state, cu_seqlens)]


def _next_state(part: str, x: torch.Tensor, state: list[torch.Tensor],
                cu_seqlens: torch.Tensor | None) -> list[torch.Tensor]:
    """Returns fake states after x. Those of constant size keep their shape; torch.ops.cortado.part_places tells the others'."""
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
