"""Two builds of the program side by side: every operator and some models, in turns, so that a drift of the machine hits both.

    python bench/compare_builds.py OLD NEW [--turns 5] [--threads 1] [--tokens 256,4096] [--only ops|models] [--json FILE]

OLD and NEW are programs (build/release/bin/cortado of two checkouts). Prints the median of each build's seconds and
NEW over OLD, the slowest first, and the same of the fastest turns, which what else the machine does meets least; rows
over 1.05 in both are marked. A measurement to read, not a test."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIXERS = ("softmax", "sliding_window", "latte", "macchiato", "gla", "gated_delta_net", "blurry_window", "lola", "mamba2")


def run(program, *arguments):
    command = [program, "bench", *map(str, arguments), "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"[compare] {' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def operator_times(program, options):
    rows = run(program, "ops", "--tokens", options.tokens, "--threads", options.threads, "--rounds", 3)["rows"]
    return {f"{row['case']} {row['pass']} {row['tokens']}": row["seconds"] for row in rows}


def model_times(program, options):
    times = {}
    for mixer in MIXERS:
        changed = ("--set", f"mixer.mixer={mixer}", "--vocabulary", 65, "--tokens", 1024, "--depth", "0,1000")
        found = run(program, "model", "configs/compare.json", *changed, "--threads", options.threads, "--rounds", 3)
        times |= {f"{mixer} token at {row['depth']}": row["seconds"] for row in found["decode"]}
        times |= {f"{mixer} prefill {row['tokens']}": row["seconds"] for row in found["prefill"]}
        times |= {f"{mixer} step {row['tokens']}": 1 / row["tokens_per_second"] for row in found["training"]}
    return times


def measure(options):
    """{name: ([old seconds], [new seconds])} over all turns."""
    kinds = {"ops": [operator_times], "models": [model_times]}.get(options.only, [operator_times, model_times])
    found = {}
    for turn in range(options.turns):
        for times in kinds:
            # the builds take turns in going first
            sides = [(0, options.old), (1, options.new)]
            for side, program in sides if turn % 2 == 0 else reversed(sides):
                for name, seconds in times(program, options).items():
                    found.setdefault(name, ([], []))[side].append(seconds)
        print(f"turn {turn + 1} of {options.turns}", file=sys.stderr)
    return found


def main():
    parser = argparse.ArgumentParser(description="Two builds side by side.")
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", default="256,4096")
    parser.add_argument("--only", choices=("ops", "models"))
    parser.add_argument("--json", type=pathlib.Path, help="keep every turn's seconds")
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    rows = [(name, *map(statistics.median, sides), min(sides[1]) / min(sides[0])) for name, sides in found.items() if all(sides)]
    rows.sort(key=lambda row: row[1] / row[2])
    width = max(len(row[0]) for row in rows)
    print(f"{'':{width}}   old, ms   new, ms  new/old  fastest")
    for name, old, new, fastest in rows:
        mark = "  slower" if min(new / old, fastest) > 1.05 else ""
        print(f"{name:{width}} {1e3 * old:9.3f} {1e3 * new:9.3f}  {new / old:7.3f}  {fastest:7.3f}{mark}")
    print(f"{len(rows)} rows, median of new/old {statistics.median(new / old for _, old, new, _ in rows):.3f}")


if __name__ == "__main__":
    main()
