"""flash-linear-attention's definitions in plain PyTorch, without its package, which loads every Triton kernel: ten seconds."""

import importlib.util
import pathlib


def naive(name):
    """The module fla.ops.NAME ("gla.naive")."""
    folder = pathlib.Path(importlib.util.find_spec("fla").origin).parent / "ops"
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location("fla_ops_" + name.replace(".", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
