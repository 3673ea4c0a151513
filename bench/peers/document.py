"""Writes docs/performance.md and its two plots from build/bench/*.json; where the best instruction set was not AVX-512, performance-ISA.md.

    build/bench-venv/bin/python bench/peers/document.py
"""

import json
import textwrap
from pathlib import Path

from goals import goals

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCS = ROOT / "build/bench", ROOT / "docs"

INTRODUCTION = """# How fast it is

The speed of cortado on a CPU beside other implementations. `make bench-peers` (`bench/peers/`) makes this page. It
installs the others into an environment of its own, runs everything interleaved in one pinned process, and compares the
results before it times anything; wrong results get no number. Ratios count, not seconds, because the machine's speed
varies by 15 % between minutes. There is one page per instruction set: [AVX-512](performance.md),
[AVX2](performance-avx2.md).

"""


def read(name):
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(header, rows):
    right = [all(str(row[i])[:1].isdigit() or row[i] in ("-", "") for row in rows) for i in range(len(header))]
    lines = [header, ["--:" if r else "---" for r in right], *rows]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in lines) + "\n"


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(seconds):
    for unit, factor in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{number(seconds * factor)} {unit}"
    return f"{number(seconds * 1e6)} us"


def known_machine(results):
    return next((r["machine"] for r in results.values() if r and "machine" in r), None)


def document_name(results):
    known = known_machine(results)
    return f"performance-{known['isa']}" if known and known["isa"] != "avx512" else "performance"


def machine(results):
    known = known_machine(results)
    if not known:
        return ""
    threads = max((c["threads"] for c in (results["ops"] or {}).get("ceilings", [])), default=known["threads"])
    return (
        f"**Machine:** {known['cpu']}, {threads} threads, {known['isa']}, torch {known['torch']}. B 1, H 4, K = V = 64, float32, unless a "
        "line says otherwise; medians.\n\n"
    )


def goal_table(results):
    rows = []
    for goal in goals(results):
        measured = "not measured" if goal.measured is None else f"{number(goal.measured)}{goal.unit}"
        met = "" if goal.measured is None else "yes" if goal.measured >= goal.least else "**no**"
        rows.append([goal.what, f"{goal.least:g}{goal.unit}", measured, met])
    return "## Goals\n\n" + table(["what", "at least", "measured", "reached"], rows)


def ceilings_table(ops):
    rows = [
        [c["threads"], number(c["fma_flops"] / 1e9), f"{number(c['matmul_flops'] / 1e9)} ({c['matmul']})"]
        + [number(c[key] / 1e9) for key in ("read_bytes", "stream_bytes", "exps")]
        for c in ops["ceilings"]
    ]
    header = ["threads", "FMA, GFLOP/s", "best matmul, GFLOP/s", "reading, GB/s", "streaming (a + 3 b), GB/s", "exp, G/s"]
    return "## What the machine can do\n\nMeasured in the same run as the operators below.\n\n" + table(header, rows)


def operator_table(ops):
    threads = max(row["threads"] for row in ops["rows"])
    single = {(row["case"], row["pass"]): row["seconds"] for row in ops["rows"] if row["threads"] == 1}
    rows = []
    for row in (row for row in ops["rows"] if row["threads"] == threads):
        share, one = row["share"], single.get((row["case"], row["pass"]))
        rows.append(
            [f"`{row['case']}`", row["pass"], duration(row["seconds"]), number(row["tokens_per_second"] / 1e3)]
            + [number(row["flops_per_second"] / 1e9), f"{100 * share['matmul']:.0f} %", f"{100 * share['stream']:.0f} %"]
            + [f"{number(one / row['seconds'])}x" if one and threads > 1 else "-"]
        )
    header = ["operator", "pass", "time", "k tokens/s", "GFLOP/s", "of the best matmul", "of streaming", f"{threads} threads against 1"]
    text = "## Operators at T = 4096\n\nMeasured by `cortado bench ops`. A scan counts as 4 K V operations per token and head (6 K V for the "
    text += "delta scan, 8 K V for the two passes over slots), attention as 4 K per key seen, and the backward makes it 3.5 times as many. "
    text += "Memory traffic counts every input and output once. A step is one token.\n\n"
    return text + table(header, rows)


def peer_tables(results):
    text = "## Against others\n\n"
    for name, result in results.items():
        if not result or "peer" not in result:
            continue
        rows = [
            [f"`{r['what']}`", r["pass"], r["tokens"], r["against"], duration(r["ours"]), duration(r["theirs"]), f"{number(r['ratio'])}x"]
            for r in result["rows"]
        ]
        settings = result["settings"]
        text += f"### {name}\n\n{settings['threads']} threads, medians of {settings['rounds']} (`bench/peers/run.py --only {name}`).\n\n"
        text += table(["what", "pass", "T", "against", "ours", "theirs", "ratio"], rows)
        text += "".join(f"- refused: {line}\n" for line in result["refused"])
    return text


def model_table(results, document):
    rows = []
    for name, label in (("model_macchiato", "Macchiato"), ("model_softmax", "softmax")):
        for row in (results[name] or {}).get("decode", []):
            rows.append([label, f"{row['depth']:,}", duration(row["seconds"])] + [f"{row[key] / 2**20:.1f} MiB" for key in ("state_bytes", "resident_bytes")])
    if not rows:
        return ""
    text = "## Decoding\n\nMeasured by `cortado bench model`: 6 layers of width 384, one sequence. A prefill reaches each depth; that of the "
    text += f"softmax model ended by its time budget.\n\n![time per token against depth]({document}-decode.svg)\n\n"
    return text + table(["model", "depth", "time per token", "state", "memory of the process"], rows)


def save_plot(name, curves, labels):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = name  # equal numbers give equal files
    curves = {label: sorted(points) for label, points in curves.items() if points}
    if not curves:
        return
    figure, axes = plt.subplots(figsize=(7.5, 4.5))
    for label, points in curves.items():
        axes.loglog(*zip(*points), marker="o", markersize=4, label=label)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(DOCS / f"{name}.svg", metadata={"Date": None})


def plots(results, document):
    length_curves, decode_curves = {}, {}
    sdpa = [row for row in (results["sdpa"] or {}).get("rows", []) if row["pass"] == "forward"]
    length_curves["SDPA (all keys)"] = {(row["tokens"], 1e3 * row["theirs"]) for row in sdpa}
    for row in (results["lengths"] or {}).get("rows", []):
        if row["pass"] == "forward" and row["case"] not in ("elementwise_scan", "short_conv"):
            length_curves.setdefault(row["case"], set()).add((row["tokens"], 1e3 * row["seconds"]))
    for name, label in (("model_macchiato", "Macchiato"), ("model_softmax", "softmax")):
        decode_curves[label] = {(row["depth"], 1e3 * row["seconds"]) for row in (results[name] or {}).get("decode", [])}
    save_plot(f"{document}-length", length_curves, ("tokens", "forward pass, ms"))
    save_plot(f"{document}-decode", decode_curves, ("tokens before", "time per token, ms"))


def folded(text):
    """Wraps prose at 120 columns."""
    lines = []
    for line in text.splitlines():
        wide = len(line) > 120 and not line.startswith(("|", "!", " "))
        lines += textwrap.wrap(line, 120, break_long_words=False, break_on_hyphens=False) if wide else [line]
    return "\n".join(lines)


def main():
    names = "ops lengths model_macchiato model_softmax model_tiny ggml sdpa pytorch_chunked slots transformers jax gpt llama_cpp transfer isas".split()
    results = {name: read(name) for name in names}
    document = document_name(results)
    text = INTRODUCTION + machine(results) + goal_table(results)
    text += Path(__file__).with_name(document.replace("performance", "bounds") + ".md").read_text() + "\n"
    text += f"## Time against length\n\n![time of a forward pass against its length]({document}-length.svg)\n\n"
    if results["ops"]:
        text += ceilings_table(results["ops"]) + operator_table(results["ops"])
    text += model_table(results, document) + peer_tables(results)
    plots(results, document)
    (DOCS / f"{document}.md").write_text(folded(text).rstrip("\n") + "\n")
    print(f"[bench-peers] docs/{document}.md")


if __name__ == "__main__":
    main()
