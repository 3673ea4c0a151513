"""Loads the operators once, from CORTADO_OPS or the release build, for every test here."""

import os
import pathlib

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ.get("CORTADO_OPS", ROOT / "build/release/lib/libcortado_ops.so"))

if not LIBRARY.exists():
    raise FileNotFoundError(f"{LIBRARY} is not built: run `ninja -C build/release cortado_ops`, or set CORTADO_OPS")
torch.ops.load_library(str(LIBRARY))
