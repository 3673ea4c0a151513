"""Draws the results of scripts/memory.sh: perplexity and found needles by the size of the memory in bytes.

    python scripts/memory_picture.py RESULTS --out docs/one-memory.svg   # needs matplotlib (requirements-bench.txt)
    python scripts/memory_picture.py RESULTS --table                     # the figures, as a table in Markdown
"""

import argparse
import json
import pathlib


def lines_of(path):
    return [line for line in map(json.loads, path.read_text().splitlines()) if "setting" not in line]


def measured(folder):
    """Returns {label of a memory: (bytes, perplexity, share of needles found)}, in the order of measurement."""
    perplexity = {line["model"]: line["perplexity"] for line in lines_of(folder / "ppl.jsonl")}
    answers = {}
    for line in lines_of(folder / "niah.jsonl"):
        if "pred" in line:
            answers.setdefault(line["model"], []).append(line)
    found = {}
    for label, asked in answers.items():
        right = sum(bool(line["correct"]) for line in asked) / len(asked)
        found[label] = (max(line["state_bytes"] for line in asked), perplexity[label], right)
    return found


def table(found):
    rows = ["| memory | MiB | perplexity | needles found |", "|---|--:|--:|--:|"]
    for label, (size, perplexity, right) in found.items():
        rows.append(f"| {label} | {size / 2**20:.1f} | {perplexity:.2f} | {100 * right:.0f} % |")
    return "\n".join(rows)


def draw(found, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "memory", "svg.fonttype": "none"})  # reproducible and small files
    from matplotlib import pyplot, ticker

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    families = {}
    for label, values in found.items():
        families.setdefault(label.replace(",", " ").split()[0], []).append((label, *values))
    for family, points in families.items():
        sizes = [size / 2**20 for _, size, _, _ in points]
        for axes, number in ((left, 2), (right, 3)):
            axes.plot(sizes, [point[number] * (100 if number == 3 else 1) for point in points], "o-", label=family)
    for axes, title in ((left, "perplexity"), (right, "needles found, %")):
        axes.set(xscale="log", xlabel="bytes of one sequence, MiB", ylabel=title)
        axes.grid(alpha=0.3)
        axes.set_xticks([5, 10, 20, 50, 100, 200])
    left.set(yscale="log", yticks=[20, 25, 30, 40, 60])
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        axis.set_major_formatter(ticker.ScalarFormatter())
        axis.set_minor_locator(ticker.NullLocator())
    right.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, help="the folder that scripts/memory.sh wrote to")
    parser.add_argument("--out", type=pathlib.Path, help="the picture")
    parser.add_argument("--table", action="store_true", help="print the figures")
    args = parser.parse_args()
    found = measured(args.results)
    if args.table or not args.out:
        print(table(found))
    if args.out:
        draw(found, args.out)


if __name__ == "__main__":
    main()
