#!/usr/bin/env python3
"""Makes two small tasks for lm-evaluation-harness from any English text, similar to LAMBADA and HellaSwag, and runs them on
models of this library. They are a substitute where the harness's own data sets can't be downloaded.

    small_tasks.py TEXT --questions 200 --out runs/small        only makes the tasks, for examples/few_shot.sh MODEL --include runs/small
    small_tasks.py TEXT --out runs/small --ask softmax=runs/smollm2 --ask "LoLA=runs/linear --memory lola --chunk 64"

small_last_word: a passage of 100 words or more, whose last word has occurred in it before; each token of that word must be the
likeliest. small_ending: a passage of 60 words or more and four sentences of the same text; the sentence that continues the
passage must be the likeliest (acc), or the likeliest per byte (acc_norm). With --ask, each model is evaluated by
examples/few_shot.sh, and table.md, table.json and sweep.json hold the results (scripts/pages.py puts them into a document).
Existing results are not computed again.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PASSAGE, CONTEXT, LONGEST = 100, 60, 220  # words
WORD = re.compile(r"[A-Za-z]{5,}")
HEAD = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
target_delimiter: ""
"""
TASKS = {
    "small_last_word": """output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{word}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
""",
    "small_ending": """output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{endings}}"
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
""",
}
COLUMNS = {
    "last word": ("small_last_word", "acc,none"),
    "perplexity": ("small_last_word", "perplexity,none"),
    "ending": ("small_ending", "acc,none"),
    "ending, normalised": ("small_ending", "acc_norm,none"),
}


def sentences(text):
    """Returns the sentences of all paragraphs (lines) in order."""
    return [part for line in text.splitlines() for part in re.split(r"(?<=[.!?]) +(?=[A-Z\"'])", line) if part]


def passages(every, words):
    """Yields (index of its end, passage) for every sentence: the passage has as many sentences as are needed for `words` words."""
    for end in range(1, len(every) + 1):
        start, length = end, 0
        while start and length < words:
            start -= 1
            length += len(every[start].split())
        if words <= length <= LONGEST:
            yield end, " ".join(every[start:end])


def last_words(every):
    """Yields every passage whose last word has occurred in it before."""
    for _, passage in passages(every, PASSAGE):
        context, _, last = passage.rstrip(".!?\"'").rpartition(" ")
        if WORD.fullmatch(last) and re.search(rf"\b{last}\b", context):
            yield {"context": context, "word": " " + last}


def endings(every, draw):
    """Yields every passage with the sentence after it, and three other sentences of similar length."""
    like = lambda sentence: 8 <= len(sentence.split()) <= 30 and sentence[0].isupper()
    usual = [sentence for sentence in every if like(sentence)]
    for end, passage in passages(every, CONTEXT):
        if end == len(every) or not like(every[end]):
            continue
        right = every[end]
        near = [other for other in usual if other not in passage and other != right and abs(len(other) - len(right)) <= 20]
        choices = [right, *draw.sample(near, 3)]
        draw.shuffle(choices)
        yield {"context": passage, "endings": [" " + choice for choice in choices], "answer": choices.index(right)}


def write_tasks(chosen):
    draw = random.Random(chosen.seed)
    every = sentences(chosen.text.read_text())
    made = {"small_last_word": list(last_words(every)), "small_ending": list(endings(every, draw))}
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name, questions in made.items():
        if len(questions) < chosen.questions:
            sys.exit(f"[small_tasks] {chosen.text} has {len(questions)} questions for {name}, {chosen.questions} are wanted")
        file = (chosen.out / f"{name}.jsonl").resolve()
        file.write_text("".join(json.dumps(question) + "\n" for question in draw.sample(questions, chosen.questions)))
        (chosen.out / f"{name}.yaml").write_text(HEAD.format(name=name, file=file) + TASKS[name])


def ask(chosen, label, words):
    """The harness's results for a model, as a dictionary of tasks."""
    folder = chosen.out / "answers" / re.sub(r"\W+", "-", label).strip("-")
    if not list(folder.rglob("results_*.json")):
        print(f"[small_tasks] {label}", file=sys.stderr, flush=True)
        model, *memory = shlex.split(words)
        command = [ROOT / "examples/few_shot.sh", model, "--tasks", ",".join(TASKS), "--include", chosen.out, "--out", folder]
        environment = {**os.environ, "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        environment.setdefault("HF_HOME", str(chosen.out.resolve() / "cache"))
        done = subprocess.run([*command, "--", *memory], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            sys.exit(done.returncode)
    return json.loads(next(folder.rglob("results_*.json")).read_text())["results"]


def machine():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def write_table(chosen, found):
    rows = []
    for label, result in found.items():
        numbers = {column: result[task][metric] for column, (task, metric) in COLUMNS.items()}
        errors = {f"{column} stderr": result[task][metric.replace(",", "_stderr,")] for column, (task, metric) in COLUMNS.items()}
        rows.append({"model": label, **numbers, **errors})
    put = lambda row, column: f"{row[column]:.2f}" if column == "perplexity" else f"{100 * row[column]:.1f} ± {100 * row[column + ' stderr']:.1f}"
    table = ["| model | " + " | ".join(COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    table += ["| " + " | ".join([row["model"], *(put(row, column) for column in COLUMNS)]) + " |" for row in rows]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    about = {"rows": rows, "questions": chosen.questions, "machine": machine(), "commit": commit.stdout.strip()}
    command = "python " + shlex.join(["scripts/small_tasks.py", *sys.argv[1:]])
    for name, text in (
        ("table.md", "\n".join(table) + "\n"),
        ("table.json", json.dumps(about, indent=2) + "\n"),
        ("sweep.json", json.dumps({"command": command}, indent=2) + "\n"),
    ):
        (chosen.out / name).write_text(text)
    print("\n".join(table))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path, metavar="TEXT", help="paragraphs, one per line, as scripts/english.py writes them")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--questions", type=int, default=200, help="questions per task (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ask", action="append", default=[], metavar='"NAME=MODEL [options of cortado serve]"')
    chosen = parser.parse_args()
    if not chosen.text.is_file():
        parser.error(f"there is no file {chosen.text}")
    models = dict(words.split("=", 1) if "=" in words else parser.error(f"--ask {words} has no name") for words in chosen.ask)
    write_tasks(chosen)
    if models:
        write_table(chosen, {label: ask(chosen, label, words) for label, words in models.items()})


if __name__ == "__main__":
    main()
