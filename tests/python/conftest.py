"""Loads the operators once for every test here: CORTADO_OPS, or the library of the build folder (CORTADO_BUILD). With
CORTADO_DEVICE=cuda all tensors that a test makes without a device are on the GPU."""

import os
import pathlib

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))
LIBRARY = pathlib.Path(os.environ.get("CORTADO_OPS", BUILD / "lib/libcortado_ops.so"))


@pytest.hookimpl(trylast=True)  # tests/conftest.py reports a missing library
def pytest_configure():
    torch.ops.load_library(str(LIBRARY))


def move_to(device):
    class Generator(torch.Generator):
        def __new__(cls, where=None):
            return super().__new__(cls, where or torch.get_default_device())

    numpy = torch.Tensor.numpy
    torch.set_default_device(device)
    torch.Generator = Generator
    torch.Tensor.numpy = lambda x, **given: numpy(x.cpu(), **given)


if DEVICE := os.environ.get("CORTADO_DEVICE"):
    move_to(DEVICE)
