"""Trains every model of the experiments at the paper's size for ten steps, to check that it can be trained.

    experiments_paper.py CORTADO [--list] [FILE ...]

Batches have one example, texts a byte vocabulary, and data sets are replaced by a few examples in their format, so that two
cores and 24 GB are enough. Files of commands have no models; they are only parsed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = {
    "training.steps": 10,
    "training.epochs": 0,
    "training.batch": 1,
    "training.warmup": 2,
    "training.evaluate_batches": 1,
    "training.evaluate_every": 10,
    "training.dtype": "float32",
}
FEW = {"task.examples": 20, "task.test_examples": 4}
OF_TASKS = {"mqar": FEW, "pathfinder": {**FEW, "task.validation_examples": 4}}


def write_reviews(folder):
    """Writes one film review per class, as long as the task reads."""
    for part in ("train/pos", "train/neg", "test/pos", "test/neg"):
        (folder / part).mkdir(parents=True)
        (folder / part / f"0_{9 if part.endswith('pos') else 1}.txt").write_text("A film of films. " * 250)


def write_pairs(folder):
    lines = "".join(f"{label}\tA\tB\t{'one ' * 1200}\t{'two ' * 1200}\n" for label in ("0.0", "1.0"))
    for part in ("train", "eval", "test"):
        (folder / f"new_aan_pairs.{part}.tsv").write_text(lines)


def write_pictures(folder):
    for name in [*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"]:
        (folder / f"{name}.bin").write_bytes(b"".join(bytes([label]) + bytes(range(256)) * 12 for label in range(4)))


DATA = {"image": write_pictures, "text": write_reviews, "retrieval": write_pairs}


def words_for(config, data):
    """Returns the options by which the run differs from the paper's. `data`: an empty folder."""
    settings = dict(SETTINGS)
    task = config.get("task")
    if task:
        settings.update(OF_TASKS.get(task["name"], {}))
    if task and task["name"] in DATA:
        DATA[task["name"]](data)
        settings["task.folder"] = data
    if not task:
        settings["training.tokenizer"] = "byte"
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def different(runs):
    """Returns the first run of every mixer and size."""
    seen = {}
    for run in runs:
        config = run["config"]
        seen.setdefault(json.dumps([config.get("mixer"), config["layers"], config["dim"]]), run)
    return list(seen.values())


def kind_of(path):
    """Returns why the file's runs are not trained; "": they are."""
    experiment = json.loads(path.read_text())
    if "paper" not in experiment["scales"]:
        return "of no paper"
    return "commands" if "commands" in experiment else ""


def ten_steps(cortado, path, run):
    """Trains a run for ten steps. Returns the error, or ""."""
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "data")
        data.mkdir()
        words = [cortado, "sweep", path, "--scale", "paper", "--only", run["id"], "--out", f"{folder}/out"]
        done = subprocess.run([*words, *words_for(run["config"], data)], capture_output=True, text=True, check=False)
    good = done.returncode == 0 and json.loads(done.stdout)["status"] == "done"
    return "" if good else done.stdout[-300:] + done.stderr[-300:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cortado")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--list", action="store_true", help="only say what would be trained")
    chosen = parser.parse_args()
    failed = 0
    for path in chosen.files or sorted((ROOT / "experiments").glob("*/*.json")):
        if why := kind_of(path):
            print(f"{path}: {why}")
            continue
        words = [chosen.cortado, "sweep", path, "--scale", "paper", "--list", "--json"]
        listed = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
        for run in different(listed):
            problem = "" if chosen.list else ten_steps(chosen.cortado, path, run)
            failed += bool(problem)
            print(f"{path} {run['id']}: {problem or 'ten steps'}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
