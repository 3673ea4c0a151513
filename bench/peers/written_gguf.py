"""What `cortado export --gguf` writes, opened by llama.cpp (llama-cpp-python): logits and greedy tokens of small random models.

    build/bench-venv/bin/python bench/peers/written_gguf.py [NAME ...]

A model of transformers is imported and exported in float32. Both programs then read the same tokens: llama.cpp the file, ours the run. The
logits must agree to 1e-3 of the largest, and 64 of 64 greedy tokens. Nothing is timed. llama.cpp keeps caches of float32 here.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from common import BUILD, ROOT, Bench, relative_error
from llama_peer import Ours, Theirs

sys.path.insert(0, str(ROOT / "tests/parity"))
PROMPT, WRITTEN = 70, 64


def run(*words):
    subprocess.run([str(BUILD / "bin/cortado"), *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def greedy(model, tokens, write):
    """The logits behind the prompt, and the greedy continuation."""
    logits = model.read(tokens)
    written, last = [], logits
    for _ in range(WRITTEN):
        written.append(last.argmax().item())
        last = write(written[-1])
    return logits, written


def check(name, make):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        model = make(name)
        model.save_pretrained(folder / "source")
        run("import", folder / "source", "--out", folder / "run")
        run("export", folder / "run", "--gguf", folder / "model.gguf")
        tokens = bench.torch.randint(model.config.vocab_size, (PROMPT,)).tolist()
        ours, theirs = Ours(folder / "run", weights="float32"), Theirs(folder / "model.gguf", 256, bench.threads, cache=0)
        logits, written = greedy(ours, tokens, lambda token: ours.write(token, 1))
        expected, wanted = greedy(theirs, tokens, lambda token: theirs.write(token, 1))
    error, equal = relative_error(logits, expected), sum(a == b for a, b in zip(written, wanted))
    print(f"  {name:26} logits differ by {error:.1e} of the largest, {equal} of {WRITTEN} greedy tokens are equal", flush=True)
    bench.expect(name, error, 1e-3)
    bench.expect(f"{name}: {equal} of {WRITTEN} tokens are equal", WRITTEN - equal, 0)


names, sys.argv[1:] = [word for word in sys.argv[1:] if not word[:1] in "-0123456789"], [word for word in sys.argv[1:] if word[:1] in "-0123456789"]
bench = Bench("written_gguf", __doc__, setting="nothing is timed")
from gguf_rwkv_files import LLAMA_CPP as RWKV, rwkv_model  # noqa: E402
from gguf_written import LINEAR, WRITTEN as DECODERS, linear_model  # noqa: E402
from pretrained_models import make_model  # noqa: E402

bench.torch.classes.load_library(str(BUILD / "lib/libcortado.so"))
for name in [*DECODERS, *LINEAR, *RWKV]:
    if not names or name in names:
        check(name, linear_model if name in LINEAR else rwkv_model if name in RWKV else lambda name: make_model(name)[0])
bench.finish()
