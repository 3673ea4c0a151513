#!/usr/bin/env python3
"""Measures how long idle threads should spin: trains and decodes with several waiting policies of OpenMP's threads, in turns.

    scripts/waiting.py CORTADO [--busy 3] [--turns 5] [--threads 2]

--busy: number of other processes that run meanwhile at a lower priority (nice 10). Prints the median and best tokens/s of the
turns."""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

# GOMP_SPINCOUNT=300000 is libgomp's default.
POLICIES = {
    "spinning, libgomp's own": {"GOMP_SPINCOUNT": "300000"},
    "spinning for 1,000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
CONFIG = pathlib.Path(__file__).resolve().parent.parent / "configs" / "macchiato-demo.json"


@contextlib.contextmanager
def others(count):
    """Runs `count` busy processes."""
    spin = "import os\nos.nice(10)\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def run(program, environment, *arguments):
    done = subprocess.run(
        [program, *map(str, arguments)], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def train(program, environment, threads, out):
    """Returns tokens/s of the demo's training after its first steps."""
    settings = [f"training.{each}" for each in ("evaluate_every=1000", "evaluate_batches=1", "warmup=2", "log_every=5")]
    options = [part for each in settings for part in ("--set", each)]
    run(program, environment, "train", CONFIG, "--out", out, "--overwrite", "--steps", 10, "--quiet", "--threads", threads, *options)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["tokens_per_second"] for line in lines if "tokens_per_second" in line][-1]


def decode(program, environment, threads, out):
    text = run(program, environment, "generate", out, "--prompt", "a", "--n-tokens", 300, "--json", "--threads", threads)
    return json.loads(text)["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="CORTADO")
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    speeds = {(name, what.__name__): [] for name in POLICIES for what in (train, decode)}
    with tempfile.TemporaryDirectory() as folder, others(arguments.busy):
        for _ in range(arguments.turns):
            for name, environment in POLICIES.items():
                for what in (train, decode):
                    speed = what(arguments.program, environment, arguments.threads, pathlib.Path(folder) / "run")
                    speeds[name, what.__name__].append(speed)
    print(f"{arguments.threads} threads, {arguments.busy} other processes, tokens/s: median (best) of {arguments.turns}")
    for (name, what), found in speeds.items():
        print(f"{what:<7} {name:<24} {statistics.median(found):>9,.0f} ({max(found):,.0f})")


if __name__ == "__main__":
    main()
