"""Checks that memory stays constant while a model generates: runs `cortado generate` and watches the resident set size.

    python scripts/flat_memory.py RUN [--tokens 200000] [--cortado build/release/bin/cortado] [--slack-kib 2048]

Compares the memory after a tenth of the tokens with the memory near the end. Exits with 1 if it grew by more than the slack:
allocators and the C library's buffers vary by some kilobytes, but one float per token and layer would be far more."""

import argparse
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def resident_kib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0  # it has ended


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--cortado", default=str(ROOT / "build/release/bin/cortado"))
    parser.add_argument("--slack-kib", type=int, default=2048)
    return parser.parse_args()


def main():
    args = arguments()
    command = [args.cortado, "generate", args.run, "--prompt", "\n", "--n-tokens", str(args.tokens), "--threads", "1"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    written, samples, start = 0, [], time.monotonic()
    while piece := process.stdout.read1(1 << 16):
        written += len(piece)  # bytes, which equal tokens for the demo's characters
        if written >= len(samples) * args.tokens / 100:  # not by time, so that a fast machine has as many samples
            samples.append((written, resident_kib(process.pid)))
            print(f"\r{written:9,d} bytes  {time.monotonic() - start:6.0f} s  {samples[-1][1]:9,d} KiB", end="", flush=True)
    errors = process.stderr.read().decode()
    print()
    if process.wait() != 0:
        sys.exit(f"generate failed: {errors}")
    print(errors, end="")
    samples = [s for s in samples if s[1] > 0 and s[0] >= written / 10]
    if len(samples) < 2:
        sys.exit("too short to tell: use more --tokens")
    (first_at, first), (last_at, last) = samples[0], samples[-1]
    print(f"resident: {first:,} KiB after {first_at:,} bytes, {last:,} KiB after {last_at:,}: {last - first:+,} KiB")
    if last - first > args.slack_kib:
        sys.exit("memory grows")
    print("memory is flat")


if __name__ == "__main__":
    main()
