"""Finds the package's libraries and checks that they fit the installed torch. Importing this module does not import torch."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import pathlib

PACKAGE = pathlib.Path(__file__).resolve().parent


def check_torch() -> None:
    """Raises ImportError if torch is missing or is another version than the one that the libraries were built for."""
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError("cortado needs torch, which is not installed: pip install torch") from None
    try:
        from cortado._built import TORCH  # type: ignore[import-not-found]  # written into the wheel
    except ImportError:
        return  # a source tree: its libraries were built for this torch
    if found.split(".")[:2] != TORCH.split(".")[:2]:
        raise ImportError(f"this cortado was built for torch {TORCH}, and torch {found} is installed: pip install torch=={TORCH}.*, "
                          "or a wheel of cortado for that one")  # fmt: skip


@functools.cache
def root() -> pathlib.Path:
    """Returns the folder with bin/ and lib/: the wheel's or, in a source tree, $CORTADO_BUILD or build/release."""
    places = [PACKAGE]
    try:  # an editable install keeps the libraries apart from this file
        places.append(pathlib.Path(str(importlib.metadata.distribution("cortado").locate_file("cortado"))))
    except importlib.metadata.PackageNotFoundError:
        pass
    source = PACKAGE.parent.parent
    places.append(pathlib.Path(os.environ.get("CORTADO_BUILD", source / "build" / "release")))
    for place in places:
        if (place / "lib" / "libcortado.so").is_file():
            return place
    raise ImportError(f"cortado's libraries are not there: {places[0]} is no wheel's folder, and {places[-1]} has no "
                      "lib/libcortado.so (make build)")  # fmt: skip


def shipped(name: str) -> pathlib.Path:
    """Returns the path of a file that ships with the package, such as data/tinyshakespeare.txt."""
    installed = root() / "share" / "cortado" / name
    return installed if installed.exists() else PACKAGE.parent.parent / name


@functools.cache
def library() -> None:
    """Registers the operators and classes with torch, once."""
    import torch

    torch.ops.load_library(str(root() / "lib" / "libcortado.so"))


def version() -> str:
    """Returns the version of the package or, in a source tree, of its CMakeLists.txt."""
    try:
        return importlib.metadata.version("cortado")
    except importlib.metadata.PackageNotFoundError:
        text = (PACKAGE.parent.parent / "CMakeLists.txt").read_text()
        return text.partition("project(cortado VERSION ")[2].partition(" ")[0]
