"""Ten steps of every model of the experiments at the paper's size: that they can be trained, not what they learn.

    experiments_paper.py CORTADO [FILE ...]

Batches of one example and few of them, and for texts a byte vocabulary, so that two cores and 24 GB are enough; what
needs a data set is left out, which is said.
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
OF_TASKS = {"mqar": {"task.examples": 20, "task.test_examples": 4}}


def words_for(config):
    settings = dict(SETTINGS)
    task = config.get("task")
    if task:
        settings.update(OF_TASKS.get(task["name"], {}))
    else:
        settings["training.tokenizer"] = "byte"
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def different(runs):
    """The first run of every mixer and size."""
    seen = {}
    for run in runs:
        config = run["config"]
        seen.setdefault(json.dumps([config.get("mixer"), config["layers"], config["dim"]]), run)
    return list(seen.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cortado")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    chosen = parser.parse_args()
    failed = 0
    for path in chosen.files or sorted((ROOT / "experiments").glob("*/*.json")):
        experiment = json.loads(path.read_text())
        if "commands" in experiment:
            continue
        if experiment["config"].get("task", {}).get("name") in ("image", "text", "retrieval"):
            print(f"{path}: needs a data set, left out")
            continue
        sweep = [chosen.cortado, "sweep", path, "--scale", "paper"]
        listed = json.loads(subprocess.run([*sweep, "--list", "--json"], check=True, capture_output=True).stdout)
        for run in different(listed):
            with tempfile.TemporaryDirectory() as folder:
                words = [*sweep, "--only", run["id"], "--out", f"{folder}/out", *words_for(run["config"])]
                done = subprocess.run(words, capture_output=True, text=True, check=False)
            good = done.returncode == 0 and json.loads(done.stdout)["status"] == "done"
            failed += not good
            print(f"{path} {run['id']}: {'ten steps' if good else done.stdout[-300:] + done.stderr[-300:]}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
