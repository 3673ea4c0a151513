"""Linear-time attention: operators, layers, language models, and the program.

    cortado.ops           every operator as a typed function
    cortado.nn            every mechanism as a torch.nn.Module
    cortado.load(run)     a model that the program has trained, converted or imported
    cortado.transformers  these models for Hugging Face's Auto classes (import it once)
    cortado.parameter_groups(model, 0.1)  for torch.optim: weight decay on matrices and embeddings only
    cortado.program()     the program; `cortado` and `python -m cortado` run it"""

from __future__ import annotations

import importlib
import pathlib
import typing

from cortado import _library

_library.check_torch()
__version__ = _library.version()
__all__ = ["__version__", "load", "models", "nn", "ops", "parameter_groups", "program", "transformers"]

if typing.TYPE_CHECKING:
    from cortado import models, nn, ops, transformers
    from cortado._roles import parameter_groups
    from cortado.models import load


def program() -> pathlib.Path:
    """Returns the path of the program's binary."""
    return _library.root() / "bin" / "cortado"


def __getattr__(name: str) -> typing.Any:
    """Imports submodules on first use, so that `import cortado` stays cheap."""
    if name == "load":
        return importlib.import_module("cortado.models").load
    if name == "parameter_groups":
        return importlib.import_module("cortado._roles").parameter_groups
    if name in __all__:
        return importlib.import_module(f"cortado.{name}")
    raise AttributeError(f"module 'cortado' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
