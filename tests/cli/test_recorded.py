"""Runs, states and losses that an earlier version recorded (scripts/record_runs.py): they are read, continued, and
repeated."""

import json
import pathlib
import shutil

import pytest

RECORDED = pathlib.Path(__file__).resolve().parent.parent / "recorded"
FOLDERS = sorted(path for path in RECORDED.iterdir() if path.is_dir())
WITH_STATES = [path for path in FOLDERS if (path / "state.safetensors").exists()]
RESUMED = [path for path in FOLDERS if (path / "run" / "trainer.safetensors").exists()]


def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["validation_loss"] for line in lines if "validation_loss" in line]


def ok(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_training_gives_the_recorded_losses(cortado, tmp_path, folder):
    command = ("train", folder / "recorded.json", "--set", "training.dtype=float32", "--data", RECORDED / "text.txt")
    ok(cortado(*command, "--out", tmp_path / "run", "--threads", 1))
    assert losses(tmp_path / "run") == pytest.approx(expected(folder)["trained"], abs=1e-5)


@pytest.mark.parametrize("folder", WITH_STATES, ids=lambda folder: folder.name)
def test_recorded_runs_and_states_go_on(cortado, folder):
    run = (folder / "run", "--checkpoint", "last", "--threads", 1, "--json")
    loss = json.loads(ok(cortado("eval", *run, "--text", RECORDED / "text.txt")))[0]["loss"]
    assert loss == pytest.approx(expected(folder)["loss"], abs=1e-5)
    state = ("--load-state", folder / "state.safetensors", "--seed", 5, "--n-tokens", 40)
    assert json.loads(ok(cortado("generate", *run, *state)))["text"] == expected(folder)["then"]


@pytest.mark.parametrize("folder", RESUMED, ids=lambda folder: folder.name)
def test_recorded_training_goes_on(cortado, tmp_path, folder):
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    shutil.copy(run / "last.safetensors", run / "best.safetensors")
    for name in ("config.json", "train.json"):
        (run / name).write_text((run / name).read_text().replace('"text.txt"', json.dumps(str(RECORDED / "text.txt"))))
    ok(cortado("train", "--resume", "--out", run, "--threads", 1))
    assert losses(run) == pytest.approx(expected(folder)["trained"], abs=1e-5)
