"""Opens a model, reads 512 tokens, and prints what that took as JSON: seconds to open, and MiB that it added to this process.

    opened.py ours RUN | theirs FILE.gguf
"""

import json
import os
import sys
import time

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
from common import BUILD  # noqa: E402
from llama_peer import Ours, Theirs, llama_module  # noqa: E402


def resident(field):
    """Memory of this process in MiB: "VmRSS" now, "VmHWM" at most so far."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


side, path = sys.argv[1:]
tokens = [7 * i % 1000 for i in range(512)]
if side == "ours":
    import torch

    torch.set_num_threads(2)
    torch.classes.load_library(str(BUILD / "lib/libcortado.so"))
    torch.randn(64, 64) @ torch.randn(64, 64)
else:
    import numpy  # noqa: F401
    import torch  # noqa: F401

    llama_module()
before, start = resident("VmRSS"), time.perf_counter()
model = Ours(path, weights="int4") if side == "ours" else Theirs(path, 1024, 2)
opened = time.perf_counter() - start
peak = resident("VmHWM") - before
model.read(tokens)
print(json.dumps({"seconds": opened, "peak": peak, "resident": resident("VmRSS") - before}))
