"""Reports arguments of a wrong Python type in one line."""

from __future__ import annotations

import functools
import inspect
import numbers
import typing

from torch import Tensor

_P = typing.ParamSpec("_P")
_R = typing.TypeVar("_R")
_KINDS: dict[str, type] = {"Tensor": Tensor, "bool": bool, "int": numbers.Integral, "float": numbers.Real, "typing.Literal": str}

_NAMES = {"Tensor": "a tensor", "typing.Literal": "a string"}


def _wrong_type(function: typing.Callable[..., typing.Any], arguments: typing.Any, named: typing.Any) -> str | None:
    """Describes the first argument that does not have the annotated type, in one line."""
    try:
        given = inspect.signature(function).bind(*arguments, **named).arguments
    except TypeError:  # Python's own message names the missing or superfluous argument
        return None
    for name, value in given.items():
        kind = str(function.__annotations__[name]).partition("[")[0].removesuffix(" | None")
        if not isinstance(value, _KINDS[kind]) and not (value is None and "None" in str(function.__annotations__[name])):
            return f"[{function.__name__}] {name} must be {_NAMES.get(kind, kind)}, got {type(value).__name__}"
    return None


def typed(function: typing.Callable[_P, _R]) -> typing.Callable[_P, _R]:
    """Raises TypeError with one line for a wrong type. torch's own error would print the whole tensor."""

    @functools.wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*arguments, **named)
        except (RuntimeError, TypeError):
            wrong = _wrong_type(function, arguments, named)
            if wrong is None:
                raise
        raise TypeError(wrong)

    return call
