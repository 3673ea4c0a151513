"""scripts/experiments_paper.py covers every file of experiments/, and its small data sets can be read."""

import json
import subprocess
import sys


def test_no_experiment_is_left_out(program, root):
    command = [sys.executable, root / "scripts/experiments_paper.py", program, "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = {}
    for line in done.stdout.splitlines():
        path, _, what = line.partition(".json")
        said.setdefault(path + ".json", []).append(what)
    files = {str(path): json.loads(path.read_text()) for path in (root / "experiments").glob("*/*.json")}
    assert said.keys() == files.keys()
    for path, lines in said.items():
        trained = [line for line in lines if line.endswith("ten steps")]
        paper = "paper" in files[path]["scales"]
        assert bool(trained) == (paper and "config" in files[path]), path


def test_small_data_sets_are_read(cortado, root, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "scripts"))
    import experiments_paper

    for task, write in experiments_paper.DATA.items():
        folder = tmp_path / task
        folder.mkdir()
        write(folder)
        done = cortado("task", "show", task, "--set", f"folder={folder}", "--json")
        assert done.returncode == 0, done.stderr
        longest = {"image": 1024, "text": 4000, "retrieval": 4000}[task]
        assert len(json.loads(done.stdout)["tokens"]) == longest
