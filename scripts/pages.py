"""Writes tables and pictures of documents from committed results.

    pages.py CORTADO [--check] [--results DIR] [FILE ...]

A document (docs/*.md, docs/papers/*.md) marks their places:

    <!-- results: blurry-window-mqar-laptop; columns: mixer, width=dim, accuracy; where: dim=64; pictures: state_bytes -->
    <!-- end -->

The text between the two lines is generated from experiments/results/NAME: the command, where and when it ran, the table that the
sweep makes of its results.jsonl (all columns or those named, which may be renamed; all rows or those whose setting has the
value), and pictures, which are copied beside the document. `step: NAME` is the output of one command in a sweep of
commands. --check writes nothing, and exits with 1 if something would change.
"""

import argparse
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRESS = re.compile(r".* \d+% [\d,]+/[\d,]+  ")  # a progress bar in a log
BLOCK = re.compile(r"^(<!-- results: (.*?) -->\n)(.*?)^(<!-- end -->)", re.DOTALL | re.MULTILINE)


class WrongBlock(Exception):
    pass


class Results:
    """A folder of a sweep's results, with the program's table of them."""

    def __init__(self, cortado, folder):
        self.name = folder.name
        if not (folder / "sweep.json").exists():
            raise WrongBlock(f"there are no results called {self.name}")
        self.about = json.loads((folder / "sweep.json").read_text())
        self.command = self.about["command"]
        self.made = {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}
        self.lines = [json.loads(line) for line in self.made.get("results.jsonl", "").splitlines()]
        if self.lines:
            with tempfile.TemporaryDirectory() as copy:
                for part in ("sweep.json", "results.jsonl"):
                    (pathlib.Path(copy) / part).write_text(self.made[part])
                words = [*shlex.split(self.command)[1:], "--out", copy, "--table", "--quiet"]
                done = subprocess.run([cortado, *words], capture_output=True, text=True, cwd=ROOT, check=False)
                if done.returncode != 0:
                    raise WrongBlock(f"{self.name}: {done.stderr.strip()}")
                self.made |= {path.name: path.read_text() for path in pathlib.Path(copy).iterdir() if path.is_file()}
        self.table = json.loads(self.made["table.json"])

    def circumstances(self):
        found = self.lines or [self.table]
        machines = sorted({run["machine"]["cpu"] if isinstance(run["machine"], dict) else run["machine"] for run in found})
        commits = sorted({run["commit"].rstrip("+") for run in found if run.get("commit")})
        seconds = sum(run.get("seconds", 0) for run in self.lines)
        text = f"    {self.command}\n\n"
        parts = [", ".join(machines)] + ([f"commit {', '.join(commits)}"] if commits else [])
        if self.lines:
            parts.append(f"{len(self.lines)} runs, {seconds / 3600:.1f} hours")
        return text + "; ".join(parts) + ".\n\n"

    def markdown_table(self, chosen, where):
        lines = [line for line in self.made["table.md"].split("\nEvery run:")[0].splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        head, rule, rows = cells[0], cells[1], cells[2:]
        for condition in where:
            key, value = condition.split("=")
            rows = [row for row in rows if row[place_of(head, key)] == value]
        columns = [column.split("=") for column in chosen or head if column]
        places = [place_of(head, column[-1]) for column in columns]
        kept = [i for i, place in enumerate(places) if chosen or any(row[place] not in ("", "-") for row in rows)]
        out = [[columns[i][0] for i in kept]] + [[row[places[i]] for i in kept] for row in rows]
        rules = [rule[places[i]] for i in kept]
        widths = [max(3, *(len(row[i]) for row in out)) for i in range(len(kept))]
        right = [text.endswith(":") for text in rules]
        put = lambda text, i: text.rjust(widths[i]) if right[i] else text.ljust(widths[i])
        text = ["| " + " | ".join(put(cell, i) for i, cell in enumerate(row)) + " |" for row in out]
        line = "|" + "|".join("-" * (widths[i] + 1) + (":" if right[i] else "-") for i in range(len(kept))) + "|"
        return "\n".join([text[0], line, *text[1:]]) + "\n"

    def said(self, step):
        for run in self.lines:
            if run["id"] == step:
                lines = [line for line in run["said"].strip("\n").split("\n") if not PROGRESS.match(line)]
                return "\n".join(["```", *lines, "```\n"])
        raise WrongBlock(f"{self.name}: no step {step}")


def place_of(head, name):
    if name not in head:
        raise WrongBlock(f'no column "{name}", there are {", ".join(head)}')
    return head.index(name)


def words_of(text):
    return [word.strip() for word in text.split(",") if word.strip()]


def block_text(chosen, document, options, known, files):
    parts = dict(part.strip().split(": ", 1) for part in ("name: " + options).split(";"))
    unknown = set(parts) - {"name", "columns", "where", "pictures", "step", "command"}
    if unknown:
        raise WrongBlock(f"unknown: {', '.join(sorted(unknown))}")
    name = parts["name"]
    if name not in known:
        known[name] = Results(chosen.cortado.resolve(), chosen.results.resolve() / name)
    results = known[name]
    text = results.circumstances() if parts.get("command") != "no" else ""
    steps = words_of(parts.get("step", ""))
    text += "\n".join(results.said(step) for step in steps)
    if not steps and parts.get("columns") != "none":
        text += results.markdown_table(words_of(parts.get("columns", "")), words_of(parts.get("where", "")))
    for picture in words_of(parts.get("pictures", "")):
        if f"{picture}.svg" not in results.made:
            raise WrongBlock(f"{name}: no picture {picture}")
        path = document.parent / "pictures" / f"{name}-{picture}.svg"
        files[path] = results.made[f"{picture}.svg"]
        text += f"\n![{picture.replace('_', ' ')}](pictures/{path.name})\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cortado", type=pathlib.Path)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "experiments/results")
    parser.add_argument("--check", action="store_true")
    chosen = parser.parse_intermixed_args()
    known, files, wrong = {}, {}, []
    for document in chosen.files or sorted((ROOT / "docs").glob("**/*.md")):
        document = document.resolve()

        def block(match, document=document):
            try:
                return match[1] + "\n" + block_text(chosen, document, match[2], known, files) + "\n" + match[4]
            except WrongBlock as error:
                wrong.append(f"{document}: {error}")
                return match[0]

        files[document] = BLOCK.sub(block, document.read_text())
    changed = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in changed:
        if chosen.check:
            wrong.append(f"{path}: is not what scripts/pages.py makes of the results")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files[path])
            print(path)
    for line in wrong:
        print(f"[pages] {line}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
