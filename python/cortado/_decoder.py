"""A model token by token, on a GPU as one CUDA graph."""

from __future__ import annotations

import typing

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cortado._parts import State

ModelState = list[State]  # the position's, and one a layer
Model = typing.Callable[[torch.Tensor, ModelState], tuple[torch.Tensor, ModelState | None]]
TOKEN_LOOKS = 2  # the least and the largest token, at which nobody looks while a graph is recorded


class Looks(TorchDispatchMode):
    """Counts what is read on the host: no graph can have that."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: typing.Any, types: typing.Any, args: typing.Any = (), kwargs: typing.Any = None) -> typing.Any:
        result = function(*args, **(kwargs or {}))
        arrives = isinstance(result, torch.Tensor) and result.is_cpu and any(isinstance(x, torch.Tensor) and x.is_cuda for x in args)
        self.count += function is torch.ops.aten._local_scalar_dense.default or arrives
        return result


class Decoder:
    """int64 [B, 1] -> logits [B, vocabulary], which are read before the next token is given.

    On a GPU a token's work is recorded once the state's size stays (of a window: once it is full), and then replayed: its
    kernels are so small that calling them one by one takes ten times as long as they do. A model that looks at numbers
    on the way, as one with a growing cache does, is called."""

    def __init__(self, model: Model, state: ModelState) -> None:
        self._model, self._state = model, state
        self._graph: torch.cuda.CUDAGraph | None = None
        self._fits = True  # as far as is known

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
        """Nothing of it is done now. The state after a token is copied to where the next one finds it."""
        held = [{name: x.clone() for name, x in part.items()} for part in self._state]
        self._token, self._state, self._graph = token.clone(), held, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = self._call(self._token)
            copy_all(tensors(held), tensors(self._state))
        self._state = held  # which the graph reads


def copy_all(to: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Those of a type in one launch, as far as they lie without gaps."""
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
