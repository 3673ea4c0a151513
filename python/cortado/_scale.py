"""`cortado bench scale`: measures training on several processes of this machine: speed-up, memory and communication.

For each number of processes it measures data parallelism (rows are divided), data parallelism with a divided optimiser
state, and context parallelism (sequences are divided), where states are exchanged at once or passed from process to
process. All train on the same batches. Each row of the table has tokens per second (the median of the steps after the
first quarter), the speed-up over one process, the peak memory per process, and the bytes per step of summed gradients and
of states that are passed on. With --out it also writes scale.json and scale.svg.

`--memory T` instead measures the peak memory per process of one step of T tokens, for one process and for two that share
the sequence."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import typing

from cortado import _library

Line = dict[str, typing.Any]
MODEL = {"dim": 256, "heads": 8, "layers": 6, "mixer": {"mixer": "gla"}, "positions": "none",
         "training": {"batch": 8, "context": 1024, "steps": 12, "warmup": 2, "evaluate_every": 1000000, "log_every": 1,
                      "tokenizer": "byte", "dtype": "float32"}}  # fmt: skip
LONG = {"dim": 128, "heads": 4, "layers": 4, "mixer": {"mixer": "gla"}, "positions": "none", "feed_forward": {"type": "swiglu", "dim": 256},
        "training": {"batch": 1, "context": 131072, "steps": 1, "warmup": 0, "evaluate_every": 1000000, "log_every": 1,
                     "tokenizer": "byte", "dtype": "float32"}}  # fmt: skip


def free_port() -> int:
    with contextlib.closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def path_with_package() -> str:
    """Returns PYTHONPATH for processes that must import this package."""
    return os.pathsep.join(filter(None, [str(_library.PACKAGE.parent), os.environ.get("PYTHONPATH")]))


def run(config: Line, count: int, words: list[str], folder: str, parts: str = "") -> tuple[list[Line], list[int]]:
    """Trains on `count` processes of one thread each. Returns the lines of metrics.jsonl, and each peak memory in bytes."""
    out = pathlib.Path(folder) / "run"
    path = pathlib.Path(folder) / "config.json"
    path.write_text(json.dumps(config))
    port = free_port()
    processes: list[subprocess.Popen[bytes]] = []
    for rank in range(count):
        environment = {**os.environ, "PYTHONPATH": path_with_package(), "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank),
                       "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CORTADO_PARTS": parts}  # fmt: skip
        command = [sys.executable, "-m", "cortado", "train", str(path), "--out", str(out), "--overwrite", "--quiet", "--threads", "1", *words]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    peaks = []
    for process in processes:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peaks.append(usage.ru_maxrss * 1024)
    if any(process.returncode for process in processes):
        sys.exit(f"cortado: [bench scale] {' '.join(words)} on {count} processes: exit codes {[process.returncode for process in processes]}")
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()], peaks


def speed(lines: list[Line]) -> float:
    rates = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return statistics.median(rates[len(rates) // 4 :])


HANDED_ON = "sequences, handed on"


def ways(count: int) -> dict[str, list[str]]:
    if count == 1:
        return {"one process": []}
    sequences = ["--context-parallel", str(count)]
    return {"rows": [], "rows, shared optimiser": ["--share-optimizer"], "sequences, joined": sequences, HANDED_ON: sequences}


def machine() -> str:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.machine()}"


def table(header: list[str], rows: list[list[object]]) -> str:
    cells = [header, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def mib(count: float) -> str:
    return f"{count / 2**20:.1f}"


def picture(rows: list[Line], path: pathlib.Path) -> None:
    """Draws the speed-ups as bars in plain SVG."""
    most = max(row["speedup"] for row in rows)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{40 + 28 * len(rows)}" font-family="sans-serif" font-size="13">',
             '<text x="10" y="20">Speed-up of training over one process</text>']  # fmt: skip
    for i, row in enumerate(rows):
        y = 34 + 28 * i
        width = 320 * row["speedup"] / most
        parts.append(f'<text x="10" y="{y + 15}">{row["processes"]} x {row["way"]}</text>')
        parts.append(f'<rect x="230" y="{y}" width="{width:.1f}" height="20" fill="#3b7dd8"/>')
        parts.append(f'<text x="{238 + width:.1f}" y="{y + 15}">{row["speedup"]:.2f}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n")


def measure_speed(options: argparse.Namespace) -> None:
    config = json.loads(json.dumps(MODEL))
    if options.mixer:
        config["mixer"] = {"mixer": options.mixer}
    if options.quick:
        config.update(dim=64, layers=2)
        config["training"].update(steps=4, context=64)
    rows: list[Line] = []
    for _ in range(options.rounds):  # ways take turns, so that a slow phase of the machine affects all of them
        for count in options.processes:
            for way, words in ways(count).items():
                with tempfile.TemporaryDirectory() as folder:
                    lines, peaks = run(config, count, words, folder, "hand" if way == HANDED_ON else "join")
                row = next((it for it in rows if (it["processes"], it["way"]) == (count, way)), None)
                if row is None:
                    row = {"processes": count, "way": way, "rates": []}
                    rows.append(row)
                row["rates"].append(speed(lines))
                last = next(line for line in reversed(lines) if "loss" in line)
                row.update(peak=max(peaks), gradient_bytes=last.get("gradient_bytes", 0), state_bytes=last.get("state_bytes", 0))
    for row in rows:
        row["tokens_per_second"] = statistics.median(row["rates"])
        row["speedup"] = row["tokens_per_second"] / statistics.median(rows[0]["rates"])
    cells: list[list[object]] = [[row["processes"], row["way"], f"{row['tokens_per_second']:,.0f}", f"{row['speedup']:.2f}", mib(row["peak"]),
              mib(row["gradient_bytes"]), mib(row["state_bytes"])] for row in rows]  # fmt: skip
    found = json.dumps({"machine": machine(), "config": config, "rows": rows}, indent=1) + "\n"
    header = ["processes", "shared out", "tokens/s", "speed-up", "MiB a process", "MiB of gradients", "MiB handed on"]
    print(found if options.json else table(header, cells) + "\n" + machine())
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "scale.json").write_text(found)
        picture(rows, options.out / "scale.svg")


def measure_memory(options: argparse.Namespace) -> None:
    config = json.loads(json.dumps(LONG))
    config["training"]["context"] = options.memory
    if options.mixer:
        config["mixer"] = {"mixer": options.mixer}
    cells: list[list[object]] = []
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        shipped = _library.shipped("data/tinyshakespeare.txt").read_text()
        text.write_text(shipped * (2 * options.memory // len(shipped) + 1))
        config["training"]["data"] = str(text)
        for count in options.processes:
            words = [] if count == 1 else ["--context-parallel", str(count)]
            lines, peaks = run(config, count, ["--stop-at", "1", *words], folder)
            first = first or max(peaks)
            loss = next(line["loss"] for line in lines if "loss" in line)
            cells.append([count, mib(max(peaks)), f"{100 * max(peaks) / first:.0f} %", f"{loss:.6f}"])
    header = ["processes", "MiB a process, at most", "of one", "loss"]
    print(json.dumps([dict(zip(header, row)) for row in cells]) if options.json else table(header, cells))


def counts(text: str) -> list[int]:
    found = [int(it) for it in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return found


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        print(f"cortado: [bench scale] {message}", file=sys.stderr)
        sys.exit(2)


def main(words: list[str]) -> int:
    parser = Parser("cortado bench scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=counts, default=[1, 2], help="numbers of processes, separated by commas (default: 1,2)")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for scale.json and scale.svg")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--rounds", type=int, default=3, help="measurements, whose median is taken (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a few steps of a smaller model, to see that it works")
    parser.add_argument("--memory", type=int, metavar="T", help="measure memory instead, for a sequence of T tokens")
    parser.add_argument("--mixer", help="the mixer (default: gla)")
    options = parser.parse_args(words)
    if options.rounds < 1 or (options.memory is not None and options.memory < 2):
        parser.error("--rounds must be 1 or more, --memory 2 or more")
    if options.memory:
        measure_memory(options)
    else:
        measure_speed(options)
    return 0
