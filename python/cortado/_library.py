import os, pathlib, torch
def library():
    root = pathlib.Path(__file__).resolve().parents[2]
    torch.ops.load_library(str(pathlib.Path(os.environ.get("CORTADO_BUILD", root / "build/release")) / "lib/libcortado.so"))
