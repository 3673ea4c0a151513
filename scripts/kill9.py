#!/usr/bin/env python3
"""Kills training with SIGKILL at random steps, and checks each time that the run can be read and resumed.

    scripts/kill9.py [--cortado build/release/bin/cortado] [--kills 20] [--seed 1]

The first kill comes before there is a checkpoint, and each other one some checkpoints after the last resumption plus a random
part of the time between checkpoints. In the end the run must equal, bit for bit, one that was never killed."""

import argparse
import hashlib
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CONFIG = {
    "dim": 64,
    "heads": 2,
    "layers": 2,
    "mixer": {"mixer": "macchiato", "latents": 32, "window": 17},
    "feed_forward": {"type": "swiglu", "dim": 128},
    "dropout": 0.1,
    # With a checkpoint every other step, most kills hit one that is being written.
    "training": {"batch": 2, "context": 32, "steps": 0, "evaluate_every": 2, "evaluate_batches": 2, "log_every": 1},
}
# There are at most half as many steps between two kills; the rest is for machines on which the kill comes late.
STEPS_A_KILL = 20


def tensors_hash(path):
    """Returns a hash of the tensors only, because the metadata includes training times."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + raw[8 + size :]).hexdigest()


def step_of(run):
    """Returns the step of the last checkpoint; -1 if there is none."""
    try:
        with (run / "trainer.safetensors").open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except FileNotFoundError:
        return -1
    return json.loads(header["__metadata__"]["state"])["step"]


def check(command, what):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{what} failed with {done.returncode}: {done.stderr or done.stdout}")


def kill_when(process, arrived, later):
    """Waits until `arrived()` is true and `later` seconds more, then kills the process."""
    while not arrived():
        if process.poll() is not None:
            sys.exit(f"the program ended with {process.returncode} before it could be killed")
        time.sleep(0.0005)
    time.sleep(later)
    process.kill()
    if process.wait() != -9:
        sys.exit(f"the program ended with {process.returncode} before it was killed")


def parsed():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cortado", default=str(ROOT / "build" / "release" / "bin" / "cortado"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills must be at least 1")
    return options


def kill_often(options, begin, go_on, run, checkpoint):
    """`checkpoint`: approximate seconds between two checkpoints."""
    chance = random.Random(options.seed)
    for _ in range(100):  # the kill may come too late
        shutil.rmtree(run, ignore_errors=True)
        kill_when(subprocess.Popen(begin, stdout=subprocess.DEVNULL), (run / "config.json").exists, 0)
        if step_of(run) < 0:
            break
    else:
        sys.exit("kill 1: it never came before the first checkpoint")
    print("kill  1: before the first checkpoint")
    for kill in range(2, options.kills + 1):
        target = max(0, step_of(run)) + 2 * chance.randint(1, STEPS_A_KILL // 4)
        process = subprocess.Popen(go_on, stdout=subprocess.DEVNULL)
        kill_when(process, lambda: step_of(run) >= target, chance.uniform(0, checkpoint))
        check([options.cortado, "describe", str(run)], f"kill {kill}: describe")
        check([options.cortado, "generate", str(run), "--prompt", "a", "--n-tokens", "2"], f"kill {kill}: generate")
        print(f"kill {kill:2}: readable, at step {step_of(run)}", flush=True)


def main():
    options = parsed()
    steps = STEPS_A_KILL * (options.kills + 3)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        config = work / "config.json"
        config.write_text(json.dumps({**CONFIG, "training": {**CONFIG["training"], "steps": steps}}))
        begin = [options.cortado, "train", str(config), "--threads", "1", "--quiet", "--out"]
        start = time.monotonic()
        check([*begin, str(work / "whole")], "the run that is never killed")
        checkpoint = (time.monotonic() - start) / (steps / 2)

        run = work / "killed"
        go_on = [options.cortado, "train", "--resume", "--threads", "1", "--quiet", "--out", str(run)]
        kill_often(options, [*begin, str(run)], go_on, run, checkpoint)
        check(go_on, "the last resumption")
        for name in ("trainer.safetensors", "best.safetensors", "last.safetensors"):
            if tensors_hash(run / name) != tensors_hash(work / "whole" / name):
                sys.exit(f"{name} differs from that of the run that was never killed")
    print(f"{options.kills} kills: readable each time, and in the end equal to a run that was never killed")


if __name__ == "__main__":
    main()
