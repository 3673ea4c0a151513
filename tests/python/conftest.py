"""Loads the operators once for every test here: CORTADO_OPS, or the library of the build folder (CORTADO_BUILD)."""

import os
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build/release"))
LIBRARY = pathlib.Path(os.environ.get("CORTADO_OPS", BUILD / "lib/libcortado_ops.so"))

if not LIBRARY.exists():
    raise FileNotFoundError(f"{LIBRARY} is not built: run `ninja -C build/release cortado_ops`, or set CORTADO_OPS")
torch.ops.load_library(str(LIBRARY))
