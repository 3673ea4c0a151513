"""Attention transfer of SmolLM2-135M to lolcats: as `cortado linearize` does it, with int8 and with float32 frozen matrices, in turns.

    build/bench-venv/bin/python bench/peers/transfer.py [--tokens 1024] [--threads 2] [--rounds 3]

Sequences of so many tokens, one a step; the seconds are one sequence's, from the report of 20 steps, without the evaluations. What is learned
must be worth the same: a line whose loss differs from float32's by more than 3 % is refused.
"""

import json
import statistics
import subprocess

from common import BUILD, RESULTS, ROOT, Bench
from smollm2 import imported, model_file

STEPS = 20
OURS, INT8, FLOAT32 = "as by default", "int8", "float32"
FLAGS = {OURS: [], INT8: ["--weights", "int8"], FLOAT32: ["--weights", "plain", "--dtype", "float32"]}


def transfer(run, context, flags):
    """Returns the seconds per sequence and the last loss."""
    out = RESULTS / "transfer"
    command = [BUILD / "bin/cortado", "linearize", run, "--out", out, "--overwrite", "--quiet", "--mixture", "gated", "--accumulate", 1]
    command += ["--context", context, "--tokens", STEPS * context, "--evaluate-every", 1000, "--evaluation-chunks", 2]
    command += ["--data", ROOT / "data/tinyshakespeare.txt", *flags]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    stage = json.loads((out / "report.json").read_text())["stages"][0]
    return stage["seconds"] / STEPS, stage["loss_after"]


bench = Bench("transfer", __doc__, rounds=3, tokens=(1024,), setting="SmolLM2-135M-Instruct to lolcats, one sequence a step")
run = imported(model_file())
for context in bench.tokens:
    results = {name: [] for name in FLAGS}
    for _ in range(bench.rounds):
        for name, flags in FLAGS.items():
            results[name].append(transfer(run, context, flags))
    seconds = {name: statistics.median(time for time, _ in found) for name, found in results.items()}
    right = results[FLOAT32][0][1]
    for name in (OURS, INT8):
        if not bench.expect(f"{name}, T {context}", abs(results[name][0][1] / right - 1), 0.03):
            continue
        row = {"what": f"attention transfer, {name}", "against": FLOAT32, "pass": "a sequence", "tokens": context}
        bench.rows.append(row | {"ours": seconds[name], "theirs": seconds[FLOAT32], "ratio": seconds[FLOAT32] / seconds[name]})
        print(f"  {row['what']:36} T {context:6}  {context / seconds[name]:8.0f} tokens/s, float32 {context / seconds[FLOAT32]:.0f}", flush=True)
bench.finish()
