"""cortado sweep: many runs from one file, stopped and continued in every way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from until import wait_until

SWEEP = {
    "about": "recall",
    "config": {
        "dim": 16, "heads": 1, "layers": 1, "mixer": {"mixer": "gla"}, "feed_forward": {"type": "none"},
        "task": {"name": "mqar", "length": 16, "pairs": 2, "vocabulary": 32, "examples": 64, "test_examples": 16},
        "training": {"batch": 16, "steps": 6, "warmup": 1, "evaluate_every": 3, "dtype": "float32"},
    },
    "vary": {"training.learning_rate": [0.001, 0.01]},
    "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "linear"}],
    "metric": "accuracy",
    "best_over": ["training.learning_rate"],
    "series": ["mixer.mixer"],
    "x": ["state_bytes"],
    "scales": {"short": {}, "long": {"set": {"training.steps": 100000}}},
}  # fmt: skip


@pytest.fixture(name="sweep")
def fixture_sweep(tmp_path):
    path = tmp_path / "recall.json"
    path.write_text(json.dumps(SWEEP))
    return path


def results(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def without_times(lines):
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def test_a_table_and_pictures_come_out(cortado, sweep, tmp_path):
    out = tmp_path / "out"
    done = cortado("sweep", sweep, "--out", out, "--jobs", 2)
    assert done.returncode == 0, done.stderr
    assert "4 of 4 runs" in done.stdout
    assert [run["status"] for run in results(out)] == ["done"] * 4
    table = json.loads((out / "table.json").read_text())
    assert [row["mixer.mixer"] for row in table["rows"]] == ["gla", "linear"]
    assert "Every run" in (out / "table.md").read_text()
    assert (out / "state_bytes.svg").read_text().startswith("<svg")
    assert len((out / "runs.csv").read_text().splitlines()) == 5
    # A second call repeats nothing.
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}
    assert cortado("sweep", sweep, "--out", out).returncode == 0
    assert before == {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}
    # The lines are enough for the pictures and curves, too.
    lines, made = results(out), {name: (out / name).read_bytes() for name in ("table.md", "table.json", "state_bytes.svg", "curves.svg")}
    assert all(run["curve"]["step"] == [3, 6] and len(run["curve"]["accuracy"]) == 2 for run in lines)
    shutil.rmtree(out / "runs")
    for name in made:
        (out / name).unlink()
    assert cortado("sweep", sweep, "--out", out).returncode == 0
    assert results(out) == lines and not list((out / "runs").glob("*/"))
    assert made == {name: (out / name).read_bytes() for name in made}


def test_what_has_been_found_so_far_is_put_together(cortado, sweep, tmp_path):
    out = tmp_path / "out"
    assert cortado("sweep", sweep, "--scale", "short", "--out", out, "--shard", "1/2").returncode == 0
    commit = re.search(r"\((.*)\)", cortado("--version").stdout)
    assert all(run["machine"]["cpu"] and run.get("commit") == (commit and commit[1]) for run in results(out))
    assert json.loads((out / "sweep.json").read_text())["command"] == f"cortado sweep {sweep} --scale short"
    (out / "table.json").unlink()
    done = cortado("sweep", sweep, "--scale", "short", "--out", out, "--table")
    assert done.returncode == 0 and "2 of 4 runs" in done.stdout
    assert len(results(out)) == 2 and len(json.loads((out / "table.json").read_text())["rows"]) == 2


def test_results_of_values_that_are_gone_stay(cortado, sweep, tmp_path):
    out = tmp_path / "out"
    assert cortado("sweep", sweep, "--out", out).returncode == 0
    all_lines = results(out)
    shutil.rmtree(out / "runs")
    sweep.write_text(json.dumps({**SWEEP, "vary": {"training.learning_rate": [0.01]}}))
    done = cortado("sweep", sweep, "--out", out)
    assert done.returncode == 0 and "2 of 2 runs" in done.stdout
    assert sorted(run["id"] for run in results(out)) == sorted(run["id"] for run in all_lines)
    sweep.write_text(json.dumps(SWEEP))
    assert "4 of 4 runs" in cortado("sweep", sweep, "--out", out).stdout
    assert results(out) == all_lines and not list((out / "runs").glob("*/"))


def test_shards_are_parts_of_one_sweep(cortado, sweep, tmp_path):
    out = tmp_path / "out"
    for part, count in ((1, 2), (2, 4)):
        done = cortado("sweep", sweep, "--out", out, "--shard", f"{part}/2", "--jobs", 1)
        assert done.returncode == 0, done.stderr
        assert len(results(out)) == count
    whole = tmp_path / "whole"
    cortado("sweep", sweep, "--out", whole)
    assert without_times(results(out)) == without_times(results(whole))


def test_an_array_of_slurm_shares_a_sweep(program, root, sweep, tmp_path):
    out = tmp_path / "out"
    for part in ("1", "2"):
        given = {"CORTADO": str(program), "SLURM_ARRAY_TASK_ID": part, "SLURM_ARRAY_TASK_COUNT": "2"}
        command = [root / "examples/sweep_slurm.sh", sweep, "short", out]
        subprocess.run(command, env={**os.environ, **given}, check=True, capture_output=True)
    assert len(results(out)) == 4


@pytest.mark.slow
def test_ray_runs_a_sweep_on_two_workers(program, root, sweep, tmp_path):
    command = [sys.executable, root / "examples/sweep_ray.py", sweep, "--scale", "short", "--out", tmp_path / "out"]
    done = subprocess.run([*command, "--cortado", program, "--workers", "2"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path / "out")) == 4 and "4 of 4" in done.stdout


def test_one_run_alone(cortado, refused, sweep, tmp_path):
    out = tmp_path / "out"
    listed = json.loads(cortado("sweep", sweep, "--list", "--json").stdout)
    name = listed[2]["id"]
    done = cortado("sweep", sweep, "--out", out, "--only", name)
    assert done.returncode == 0, done.stderr
    again = cortado("sweep", sweep, "--out", out, "--only", name)
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert not list((out / "runs").glob("*.claim"))
    (out / "runs" / f"{listed[0]['id']}.claim").write_text(json.dumps({"host": "elsewhere", "process": 1}))
    assert "another process" in refused("sweep", sweep, "--out", out, "--only", listed[0]["id"], code=1)


def begin(program, sweep, out, *words):
    command = [program, "sweep", sweep, "--scale", "long", "--out", out, "--jobs", "1", "--quiet", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: list(out.glob("runs/*/trainer.safetensors")), process)
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ended_at_any_moment_it_goes_on(program, cortado, sweep, tmp_path, how):
    out = tmp_path / "out"
    process = begin(program, sweep, out)
    os.kill(process.pid, how)
    said = process.communicate(timeout=300)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL), said
    own = ["pgrep", "-f", "--", f"--out {out} .*--only"]  # the run's own process saves and ends
    wait_until(lambda: subprocess.run(own, stdout=subprocess.DEVNULL).returncode != 0)
    run = next((out / "runs").glob("*/train.json"))
    metrics = run.parent / "metrics.jsonl"
    reached, size = json.loads(run.read_text())["step"], metrics.stat().st_size
    again = begin(program, sweep, out, "--shard", "1/4")
    wait_until(lambda: metrics.stat().st_size > size, again)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=300)
    assert again.returncode == 143
    assert json.loads(run.read_text())["step"] >= reached
    assert len(list((out / "runs").glob("*/"))) == 1, "the same run went on"


def test_a_run_that_fails_is_a_row(cortado, sweep, tmp_path):
    wrong = {**SWEEP, "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "linear", "heads": 3}]}
    sweep.write_text(json.dumps(wrong))
    out = tmp_path / "out"
    assert cortado("sweep", sweep, "--out", out).returncode == 0
    failed = [run for run in results(out) if run["status"] == "failed"]
    assert len(failed) == 2 and "not divisible" in failed[0]["message"]
    assert "not divisible" in (out / "table.md").read_text()
    times = {path: path.stat().st_mtime_ns for path in (out / "runs").glob("*.json")}
    assert cortado("sweep", sweep, "--out", out, "--retry").returncode == 0
    again = [path for path in times if path.stat().st_mtime_ns != times[path]]
    assert len(again) == 2, "failed runs alone are done again"


def test_its_price_is_told_before(cortado, sweep, tmp_path):
    plan = json.loads(cortado("sweep", sweep, "--dry-run", "--json", "--out", tmp_path / "out").stdout)
    assert len(plan["runs"]) == 4 and all(run["hours"] > 0 for run in plan["runs"])
    assert [run["tokens"] for run in plan["runs"]] == [6 * 16 * 16] * 4 and plan["tokens"] == 4 * 6 * 16 * 16
    assert "4 runs, 6,144 tokens, about" in cortado("sweep", sweep, "--dry-run").stdout
    assert not (tmp_path / "out").exists()


def test_a_price_that_cannot_be_told_is_one_line(refused, sweep):
    sweep.write_text(json.dumps({**SWEEP, "config": {**SWEEP["config"], "task": {"name": "image"}}}))
    assert 'needs "folder"' in refused("sweep", sweep, "--dry-run")


def test_large_vocabularies_and_batches_are_priced(cortado, sweep):
    training = {"batch": 4096, "context": 64, "steps": 1000, "tokenizer": "sentencepiece:9000", "evaluate_every": 500}
    config = {**SWEEP["config"], "training": training}
    del config["task"]
    sweep.write_text(json.dumps({"config": config}))
    done = cortado("sweep", sweep, "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert plan["tokens"] == 4096 * 64 * 1000 and plan["hours"] > 0, done.stderr


COMMANDS = {
    "about": "one after the other",
    "variables": {"steps": 4, "text": None},
    "commands": [
        {"name": "model", "command": ["train", "{here}/config.json", "--data", "{text}", "--set", "training.steps={steps}", "--out", "{out}"]},
        {"name": "loss", "command": ["eval", "{model}", "--text", "{text}", "--json"]},
    ],
    "scales": {"long": {"variables": {"steps": 3000}}},
}


@pytest.fixture(name="commands")
def fixture_commands(tmp_path):
    training = {"batch": 4, "context": 32, "steps": 4, "warmup": 1, "evaluate_every": 50, "tokenizer": "char"}
    config = {"dim": 16, "heads": 1, "layers": 1, "mixer": {"mixer": "gla"}, "training": training}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "commands.json"
    path.write_text(json.dumps(COMMANDS))
    return path


def test_commands_one_after_the_other(cortado, refused, commands, text, tmp_path):
    out = tmp_path / "out"
    words = ["--set", f"text={text}", "--out", out]
    done = cortado("sweep", commands, *words)
    assert done.returncode == 0, done.stderr
    assert [(run["id"], run["status"]) for run in results(out)] == [("model", "done"), ("loss", "done")]
    table = (out / "table.md").read_text()
    assert f"cortado eval {out}/runs/model --text {text}" in table and '"perplexity"' in table
    # Nothing is done again.
    before = (out / "runs" / "model.log").stat().st_mtime_ns
    assert cortado("sweep", commands, *words).returncode == 0
    assert before == (out / "runs" / "model.log").stat().st_mtime_ns
    assert "needs --set text=" in refused("sweep", commands, "--out", tmp_path / "other")
    assert "sequence of commands" in refused("sweep", commands, *words, "--shard", "1/2")
    priced = json.loads(cortado("sweep", commands, *words, "--dry-run", "--json").stdout)
    assert [step["id"] for step in priced["commands"]] == ["model", "loss"]
    assert priced["commands"][0]["tokens"] == 4 * 4 * 32 and priced["commands"][0]["hours"] > 0
    assert "doesn't say how long" in priced["commands"][1]["problem"]
    lines = cortado("sweep", commands, *words, "--dry-run").stdout.splitlines()
    assert [line.split()[0] for line in lines if "not known" in line] == ["loss"]
    assert "without the 1 of unknown duration" in lines[-1]


def test_a_command_that_fails_is_a_row(cortado, commands, text, tmp_path):
    broken = json.loads(commands.read_text())
    broken["commands"][1]["command"] = ["eval", "{model}", "--text", "/nowhere"]
    commands.write_text(json.dumps(broken))
    out = tmp_path / "out"
    cortado("sweep", commands, "--set", f"text={text}", "--out", out)
    assert [run["status"] for run in results(out)] == ["done", "failed"]
    assert "/nowhere" in results(out)[1]["message"]


@pytest.mark.slow
def test_commands_go_on_where_they_were_killed(cortado, program, commands, text, tmp_path):
    out = tmp_path / "out"
    words = [program, "sweep", commands, "--scale", "long", "--set", f"text={text}", "--out", out]
    with subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        metrics = out / "runs" / "model" / "metrics.jsonl"
        wait_until(lambda: metrics.exists() and '"validation_loss"' in metrics.read_text(), process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    assert process.returncode == 130
    assert metrics.exists() and not (out / "runs" / "model.json").exists()
    done = cortado(*words[1:])
    assert done.returncode == 0, done.stderr
    assert [run["status"] for run in results(out)] == ["done", "done"]
    validated = [entry["step"] for entry in map(json.loads, metrics.read_text().splitlines()) if "validation_loss" in entry]
    assert validated == sorted(set(validated)) and validated[-1] == 3000  # from where it was, and nothing twice


@pytest.mark.parametrize("scale", os.environ.get("CORTADO_SCALES", "laptop").split(","))  # all of them: make check-all
def test_every_experiment_loads(cortado, root, scale):
    for path in sorted((root / "experiments").glob("*/*.json")):
        experiment = json.loads(path.read_text())
        if scale in experiment["scales"]:
            # Names that a user must choose; any will do here.
            unnamed = [key for key, value in experiment.get("variables", {}).items() if value is None]
            words = [word for key in unnamed for word in ("--set", f"{key}=something")]
            done = cortado("sweep", path, "--scale", scale, "--list", *words)
            assert done.returncode == 0, f"{path}: {done.stdout}{done.stderr}"


def test_a_smallest_experiment_ends_well(cortado, root, tmp_path):
    done = cortado("sweep", root / "experiments/blurry-window/width.json", "--scale", "smoke", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [run["status"] for run in results(tmp_path / "out")] == ["done"] * 4


def test_bad_input_is_refused(cortado, refused, sweep, tmp_path):
    out = tmp_path / "out"
    assert "no scale" in refused("sweep", sweep, "--scale", "huge", "--out", out)
    assert "I/N" in refused("sweep", sweep, "--shard", "3/2", "--out", out)
    assert "cores" in refused("sweep", sweep, "--jobs", "500", "--out", out)
    assert "there is no run" in refused("sweep", sweep, "--only", "nothing", "--out", out)
    assert not out.exists()
    assert cortado("sweep", sweep, "--out", out).returncode == 0
    before = (out / "results.jsonl").read_bytes()
    assert "another sweep" in refused("sweep", sweep, "--set", "training.steps=7", "--out", out)
    used = tmp_path / "used"
    used.mkdir()
    (used / "thesis.tex").write_text("")
    assert "holds something else: thesis.tex" in refused("sweep", sweep, "--out", used)
    misspelt = tmp_path / "misspelt.json"
    misspelt.write_text(json.dumps({**SWEEP, "sedes": [1]}))
    assert "did you mean" in refused("sweep", misspelt, "--out", out)
    assert before == (out / "results.jsonl").read_bytes()
    (out / "results.jsonl").write_text('{"id": "another", "accuracy": 0.7}\n')
    assert "has results of another sweep" in refused("sweep", sweep, "--out", out)
    assert (out / "results.jsonl").read_text() == '{"id": "another", "accuracy": 0.7}\n'
    (out / "results.jsonl").write_bytes(before)
    next((out / "runs").glob("*.json")).write_text('{"id": "another"}')
    assert "not the result of this run" in refused("sweep", sweep, "--out", out)
