"""cortado task, and training on one."""

import json

import pytest

DRAWN = ["mqar", "regbench", "listops", "pathfinder"]


def test_every_task_is_listed(cortado):
    listed = json.loads(cortado("task", "list", "--json").stdout)
    assert {task["name"] for task in listed} == {*DRAWN, "image", "text", "retrieval"}
    assert all(task["name"] in cortado("task", "list").stdout for task in listed)


@pytest.mark.parametrize("name", DRAWN)
def test_examples_are_shown_and_exported(cortado, tmp_path, name):
    shown = cortado("task", "show", name, "--split", "test", "--index", 3)
    assert shown.returncode == 0 and shown.stdout.strip(), shown.stderr
    assert cortado("task", "show", name, "--split", "test", "--index", 3).stdout == shown.stdout
    example = json.loads(cortado("task", "show", name, "--split", "test", "--index", 3, "--json").stdout)
    assert ("targets" in example) != ("label" in example)
    done = cortado("task", "export", name, "--out", tmp_path / "files", "--most", 2)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (tmp_path / "files").iterdir()}
    assert names == {"imgs", "metadata"} if name == "pathfinder" else len(names) == 3


def test_exported_pictures_are_read_again(cortado, tmp_path):
    sizes = ["--set", "examples=16", "--set", "validation_examples=2", "--set", "test_examples=2"]
    assert cortado("task", "export", "pathfinder", *sizes, "--out", tmp_path / "files").returncode == 0
    words = ["--split", "test", "--index", 1, "--json"]
    drawn = cortado("task", "show", "pathfinder", *sizes, *words).stdout
    read = cortado("task", "show", "pathfinder", "--set", f"folder={tmp_path / 'files'}", *words).stdout
    assert json.loads(read) == json.loads(drawn)


def test_statistics_stand_beside_the_published_ones(cortado):
    rows = json.loads(cortado("task", "statistics", "regbench", "--json", "--examples", 1000).stdout)
    published = [row for row in rows if "published" in row]
    assert len(published) >= 10
    assert all(row["agrees"] == "yes" for row in published), published


def test_listops_reads_what_it_writes(cortado, tmp_path):
    cortado("task", "export", "listops", "--out", tmp_path / "files", "--most", 3)
    shown = cortado("task", "show", "listops", "--set", f"folder={tmp_path / 'files'}", "--index", 2)
    assert shown.stdout == cortado("task", "show", "listops", "--index", 2).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "mqra"), 'got "mqra"'),
        (("show", "mqar", "--set", "pairs=17"), "17 pairs take 68 tokens"),
        (("show", "mqar", "--set", "vocabulary=64"), '"vocabulary" must be above'),
        (("show", "mqar", "--set", "lenght=128"), "did you mean"),
        (("show", "mqar", "--index", "200000"), "there is no 200000"),
        (("show", "mqar", "--split", "tset"), "--split"),
        (("statistics", "image"), 'needs "folder"'),
        (("show", "text", "--set", "folder=/nowhere"), "is this aclImdb?"),
    ],
)
def test_bad_input_is_refused(refused, words, message):
    assert message in refused("task", *words)


def test_a_run_learns_a_task_and_goes_on(cortado, refused, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "dim": 16, "heads": 1, "layers": 1, "mixer": {"mixer": "gla"},
        "training": {"batch": 8, "steps": 6, "warmup": 1, "evaluate_every": 3, "dtype": "float32"},
    }))  # fmt: skip
    settings = ["task.name=mqar", "task.length=16", "task.pairs=2", "task.examples=50", "task.test_examples=20"]
    changes = [word for setting in settings for word in ("--set", setting)]
    done = cortado("train", config, *changes, "--out", tmp_path / "run", "--stop-at", 4, "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert cortado("train", "--resume", "--out", tmp_path / "run", "--threads", 1).returncode == 0
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 6 and 0 <= last["accuracy"] <= 1
    # On the test examples (which also validate) it equals the last line, by number of pairs; then on others.
    words = ["eval", "task", tmp_path / "run", "--checkpoint", "last"]
    found = json.loads(cortado(*words, "--json").stdout)
    assert found["examples"] == 20 and found["accuracy"] == found["accuracy_2_pairs"] == pytest.approx(last["accuracy"])
    assert found["loss"] == pytest.approx(last["validation_loss"], rel=1e-5)
    longer = cortado(*words, "--set", "length=32", "--set", "pairs=4", "--examples", 5)
    assert longer.returncode == 0 and "accuracy_4_pairs" in longer.stdout, longer.stderr
    assert "4096" in refused(*words, "--set", "vocabulary=4096")
    assert "--split" in refused(*words, "--split", "tset")
    # A task's run refuses to read a text.
    generated = cortado("generate", tmp_path / "run", "--prompt", "x")
    assert generated.returncode == 2 and len(generated.stderr.splitlines()) == 1
