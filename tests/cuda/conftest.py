"""Operators and models on a GPU (`make test-cuda`); without one every test here is skipped. CORTADO_OPS names the library."""

import os
import pathlib
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
BUILD = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))


@pytest.hookimpl(trylast=True)  # tests/conftest.py reports a missing library
def pytest_configure():
    torch.ops.load_library(str(os.environ.get("CORTADO_OPS", BUILD / "lib/libcortado_ops.so")))


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if pathlib.Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="there is no GPU"))
