"""Kills processes of a training at random steps, and checks that the result is the same as without kills.

    python scripts/kill_ranks.py CONFIG --out FOLDER [--kills 10] [--apart 10] [--processes 2] [--seed 1] [-- more words for train]

After each kill -9 of one process, torchrun restarts all of them, and they resume from the last checkpoint. FOLDER/undisturbed
has the same training without kills. Exits with 1 unless every loss of both is equal to the last bit."""

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def start(options, out, restarts):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "CORTADO_TIMEOUT": "60"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", options.processes,
               "--max-restarts", restarts, "--monitor-interval", "0.2", "-m", "cortado", "train", options.config, "--out", out,
               "--quiet", *options.more]  # fmt: skip
    return subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def workers(launcher):
    """Returns the launcher's training processes."""
    path = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def losses(run):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {(line["step"], key): line[key] for line in found for key in ("loss", "validation_loss") if key in line}


def lines_written(run):
    try:
        return len((run / "metrics.jsonl").read_text().splitlines())
    except FileNotFoundError:
        return 0


def wait_for_lines(launcher, run, count):
    """Waits until `count` lines are written. Returns False if the training has ended."""
    while launcher.poll() is None:
        if lines_written(run) >= count:
            return True
        time.sleep(0.005)
    return False


def disturb(options, out):
    """Trains with kills. Returns their number."""
    chance = random.Random(options.seed)
    launcher = start(options, out, options.kills)
    killed = 0
    while killed < options.kills and wait_for_lines(launcher, out, lines_written(out) + chance.randint(2, max(2, options.apart))):
        living = workers(launcher.pid)
        if not living:
            break
        victim = chance.randrange(len(living))
        try:
            os.kill(living[victim], signal.SIGKILL)
        except ProcessLookupError:
            break  # it has just ended
        killed += 1
        print(f"kill {killed}: process {victim} after {lines_written(out)} lines", flush=True)
        while living[victim] in workers(launcher.pid) and launcher.poll() is None:
            time.sleep(0.02)
    _, errors = launcher.communicate()
    if launcher.returncode:
        sys.exit(f"[kill] it did not end well:\n{errors[-2000:]}")
    return killed


def main():
    parser = argparse.ArgumentParser(description="Kills processes of a training at random steps, and shows that it ends as if nothing had happened.")
    parser.add_argument("config")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--apart", type=int, default=10, help="largest number of lines of metrics.jsonl between two kills")
    parser.add_argument("more", nargs="*", help="words for cortado train")
    options = parser.parse_args()
    undisturbed, disturbed = options.out / "undisturbed", options.out / "disturbed"
    began = time.time()
    _, errors = (launcher := start(options, undisturbed, 0)).communicate()
    if launcher.returncode:
        sys.exit(f"[kill] {errors[-2000:]}")
    plain = time.time() - began
    killed = disturb(options, disturbed)
    expected, found = losses(undisturbed), losses(disturbed)
    different = [key for key in expected if found.get(key) != expected[key]]
    print(f"{killed} kills of {options.processes} processes: {len(expected)} losses, {time.time() - began - plain:.0f} s "
          f"(undisturbed {plain:.0f} s)")  # fmt: skip
    if different or expected.keys() != found.keys():
        sys.exit(f"[kill] other losses: {different[:5]}")
    print("the same losses, to the last bit")
    if killed < options.kills:
        sys.exit(f"[kill] it ended before {options.kills} kills: a longer training is needed")


if __name__ == "__main__":
    main()
