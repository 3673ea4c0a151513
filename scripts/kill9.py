#!/usr/bin/env python3
"""Kills training with SIGKILL at random moments, and checks each time that the run can be read and goes on.

    scripts/kill9.py [--cortado build/release/bin/cortado] [--kills 20] [--seed 1]

At the end the run, killed so often, must equal bit for bit one that never was."""

import argparse
import hashlib
import json
import pathlib
import random
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
    # A checkpoint every other step: most kills then hit one being written.
    "training": {"batch": 2, "context": 32, "steps": 200, "evaluate_every": 2, "evaluate_batches": 2, "log_every": 1},
}


def tensors_hash(path):
    """Of the tensors alone: the metadata has the seconds that training took."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode() + raw[8 + size :]).hexdigest()


def step_of(run):
    raw = (run / "trainer.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return json.loads(header["__metadata__"]["state"])["step"]


def check(command, what):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{what} failed with {done.returncode}: {done.stderr or done.stdout}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cortado", default=str(ROOT / "build" / "release" / "bin" / "cortado"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    chance = random.Random(options.seed)

    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        config = work / "config.json"
        config.write_text(json.dumps(CONFIG))
        begin = [options.cortado, "train", str(config), "--threads", "1", "--quiet", "--out"]
        start = time.monotonic()
        check([*begin, str(work / "whole")], "the run that is never killed")
        whole = time.monotonic() - start

        run = work / "killed"
        go_on = [options.cortado, "train", "--resume", "--threads", "1", "--quiet", "--out", str(run)]
        for kill in range(options.kills):
            resumable = (run / "config.json").exists()
            process = subprocess.Popen(go_on if resumable else [*begin, str(run)], stdout=subprocess.DEVNULL)
            time.sleep(chance.uniform(0, 2.5 * whole / options.kills))
            process.kill()
            code = process.wait()
            if code not in (-9, 0):
                sys.exit(f"kill {kill + 1}: the program had ended with {code} before it was killed")
            if not (run / "trainer.safetensors").exists():
                print(f"kill {kill + 1:2}: before the first checkpoint")
                continue
            check([options.cortado, "describe", str(run)], f"kill {kill + 1}: describe")
            check([options.cortado, "generate", str(run), "--prompt", "a", "--n-tokens", "2"], f"kill {kill + 1}: generate")
            print(f"kill {kill + 1:2}: readable, at step {step_of(run)}")
        check(go_on, "the last resumption")
        for name in ("trainer.safetensors", "best.safetensors", "last.safetensors"):
            if tensors_hash(run / name) != tensors_hash(work / "whole" / name):
                sys.exit(f"{name} differs from that of the run that was never killed")
    print(f"{options.kills} kills: readable each time, and in the end equal to a run that was never killed")


if __name__ == "__main__":
    main()
