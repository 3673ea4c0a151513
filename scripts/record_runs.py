"""Records small runs, states and losses of every mechanism, which later versions of the program must read and reproduce.

    python scripts/record_runs.py PROGRAM [--out tests/recorded]

For the first examples of every causal mechanism it records a run of 4 steps out of 8, its state in the middle of a text, and
the numbers that follow from them. `tests/cli/test_recorded.py` continues from all of these. Existing folders are left
unchanged, so only new mechanisms are recorded."""

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORED = 2  # examples per mechanism with stored weights and states; the others have only losses
PROMPT, BETWEEN = "the sea hears a star", 5
RESUMED = ("softmax-0", "macchiato-0", "gated_delta_net-0")  # these also store the optimiser's moments
CONFIG = {
    "name": "recorded",
    "dim": 24,
    "heads": 4,
    "layers": 1,
    "norm": "rms",
    "feed_forward": {"type": "swiglu", "dim": 24},
    "context": 32,
    "embedding": {"tied": True},
    "dropout": 0.1,
    "training": {
        "tokenizer": "char",
        "batch": 2,
        "context": 32,
        "steps": 8,
        "learning_rate": 1e-2,
        "minimum_rate": 1e-3,
        "warmup": 2,
        "schedule": "cosine",
        "weight_decay": 0.1,
        "clip": 1.0,
        "evaluate_every": 4,
        "seed": 7,
        "dtype": "float32",
    },
}


class Program:
    """Calls the program with one thread."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *arguments):
        command = [self.path, *map(str, arguments), "--threads", "1"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            sys.exit(f"[record] {' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def train(self, config, text, run, *options):
        self("train", config, "--data", text, "--out", run, "--quiet", *options)

    def write(self, run, *options):
        return json.loads(self("generate", run, "--checkpoint", "last", "--seed", 5, "--json", *options))["text"]


def write_text(path):
    """Writes a text of a dozen words: few characters, so small embeddings."""
    draw = random.Random(3)
    words = "the sea hears a star rest here rates east hat heat tree".split()
    path.write_text(" ".join(draw.choice(words) for _ in range(1500)) + "\n")


def record(program, folder, mixer, text, stored):
    """Records one example of one mechanism into its folder."""
    config = folder / "recorded.json"
    config.write_text(json.dumps({**CONFIG, "mixer": mixer}, indent=1) + "\n")
    with tempfile.TemporaryDirectory() as scratch:
        run = pathlib.Path(scratch) / "run"
        program.train(config, text, run, "--stop-at", 4)
        if stored:
            kept = folder / "run"
            shutil.copytree(run, kept, ignore=lambda _, names: [n for n in names if n == "best.safetensors"])
            for name in ("config.json", "train.json"):  # no paths of this machine
                (kept / name).write_text((kept / name).read_text().replace(str(text), text.name))
            state = folder / "state.safetensors"
            first = program.write(kept, "--prompt", PROMPT, "--n-tokens", BETWEEN, "--save-state", state)
            then = program.write(kept, "--load-state", state, "--n-tokens", 40)
            loss = json.loads(program("eval", kept, "--checkpoint", "last", "--text", text, "--json"))[0]["loss"]
            expected = {"first": first, "then": then, "loss": loss}
            if folder.name not in RESUMED:
                (kept / "trainer.safetensors").unlink()
        else:
            expected = {}
        program("train", "--resume", "--out", run, "--quiet")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        expected["trained"] = [line["validation_loss"] for line in lines if "validation_loss" in line]
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description="Records small runs of every mechanism.")
    parser.add_argument("program")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests" / "recorded")
    options = parser.parse_args()
    program = Program(options.program)
    options.out.mkdir(parents=True, exist_ok=True)
    text = options.out.resolve() / "text.txt"
    if not text.exists():
        write_text(text)
    listed = subprocess.run([options.program, "mechanisms", "--json"], capture_output=True, text=True, check=True)
    examples = {}
    for path in (ROOT / "src" / "cortado" / "mechanisms").glob("*/examples.json"):
        examples |= json.loads(path.read_text())
    for mechanism in json.loads(listed.stdout):
        if not mechanism["causal"]:
            continue
        for i, example in enumerate(examples[mechanism["name"]]["examples"]):
            folder = options.out / f"{mechanism['name']}-{i}"
            if folder.exists():
                continue
            folder.mkdir()
            record(program, folder, {"mixer": mechanism["name"], **example}, text, i < STORED)
            print(folder)


if __name__ == "__main__":
    main()
