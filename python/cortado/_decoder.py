"""Decodes a model token by token; on a GPU a token is one CUDA graph."""

from __future__ import annotations

import typing

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cortado._parts import State

ModelState = list[State]  # the position, then one state per layer
Model = typing.Callable[[torch.Tensor, ModelState], tuple[torch.Tensor, ModelState | None]]
TOKEN_LOOKS = 2  # reads of the least and the largest token, which do not happen while a graph is recorded


class Looks(TorchDispatchMode):
    """Counts tensors that are read on the host, which a CUDA graph can't contain."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: typing.Any, types: typing.Any, args: typing.Any = (), kwargs: typing.Any = None) -> typing.Any:
        result = function(*args, **(kwargs or {}))
        arrives = isinstance(result, torch.Tensor) and result.is_cpu and any(isinstance(x, torch.Tensor) and x.is_cuda for x in args)
        self.count += function is torch.ops.aten._local_scalar_dense.default or arrives
        return result


class Decoder:
    """Maps tokens int64 [B, 1] to logits [B, vocabulary]. Read the logits before giving the next token.

    On a GPU the work of a token is recorded as a CUDA graph, once the state's size is constant (with a window: once it is
    full), and then replayed. A token's kernels are so small that launching them one by one takes ten times as long as
    running them. A model that reads tensors on the host, as growing caches do, is called normally."""

    def __init__(self, model: Model, state: ModelState) -> None:
        self._model, self._state = model, state
        self._graph: torch.cuda.CUDAGraph | None = None
        self._fits = True  # whether a graph may be recorded, as far as is known

    def __call__(self, token: torch.Tensor) -> torch.Tensor:
        if self._graph is not None:
            self._token.copy_(token)
            self._graph.replay()
            return self._logits
        if not token.is_cuda or not self._fits or torch.is_autocast_enabled("cuda"):
            return self._call(token)
        before = [x.shape for x in tensors(self._state)]
        with Looks() as looks:
            logits = self._call(token)
        self._fits = looks.count <= TOKEN_LOOKS
        if self._fits and before == [x.shape for x in tensors(self._state)]:
            self._record(token)
        return logits

    @property
    def recorded(self) -> bool:
        return self._graph is not None

    def _call(self, token: torch.Tensor) -> torch.Tensor:
        logits, after = self._model(token, self._state)
        self._state = typing.cast(ModelState, after)
        return logits[:, -1]

    def _record(self, token: torch.Tensor) -> None:
        """Records the graph without running it. It ends by copying the new state to where the next token reads it."""
        held = [{name: x.clone() for name, x in part.items()} for part in self._state]
        self._token, self._state, self._graph = token.clone(), held, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._call(self._token)
            copy_all(tensors(held), tensors(self._state))
        self._state = held  # the graph reads these tensors


def copy_all(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Copies tensors; contiguous ones of one type in one launch."""
    kinds: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for x, y in zip(to, values, strict=True):
        if x.is_contiguous() and y.is_contiguous() and x.dtype == y.dtype:
            pair = kinds.setdefault(x.dtype, ([], []))
            pair[0].append(x.view(-1))
            pair[1].append(y.view(-1))
        else:
            x.copy_(y)
    for pair in kinds.values():
        torch._foreach_copy_(*pair)


def tensors(state: ModelState) -> list[torch.Tensor]:
    return [x for part in state for x in part.values()]
