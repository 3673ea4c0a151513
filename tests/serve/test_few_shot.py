"""examples/few_shot.sh: lm_eval on a server that it starts and ends."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # lm-eval

TASK = (pathlib.Path(__file__).parent / "tasks" / "choice.yaml").read_text()
QUESTIONS = [
    {"question": "The capital of France is", "choices": [" Paris", " a kind of cheese"], "answer": 0},
    {"question": "Two and two are", "choices": [" purple", " four"], "answer": 1},
    {"question": "The sun rises in the", "choices": [" east", " pocket"], "answer": 0},
]


@pytest.fixture(name="few_shot")
def fixture_few_shot(root, program, tmp_path):
    """few_shot(*words) runs the script with these words and --include for a folder of test tasks."""
    (tmp_path / "tasks").mkdir()
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (tmp_path / "tasks" / "choice.yaml").write_text(TASK.replace("CHOICE", str(data)))
    environment = {
        **os.environ, "CORTADO": str(program), "PYTHON": sys.executable, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "cache"), "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path), "PYTHONPATH": str(root / "tests" / "only_named_tasks"),
    }  # fmt: skip

    def run(*words):
        command = [root / "examples/few_shot.sh", *map(str, words)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)

    return run


def servers(tmp_path):
    """Returns what the script has left."""
    return list(tmp_path.glob("tmp.*"))


def test_a_task_is_answered_and_the_server_ends(few_shot, talker, tmp_path):
    words = ["--tasks", "cortado_choice", "--include", tmp_path / "tasks", "--out", tmp_path / "out", "--context", 256]
    done = few_shot(talker, *words, "--", "--memory", "window", "--window", 64, "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert "|cortado_choice|" in done.stdout.replace(" ", "")
    result = json.loads(next((tmp_path / "out").rglob("results_*.json")).read_text())
    assert result["results"]["cortado_choice"]["acc,none"] == 1
    assert len(next((tmp_path / "out").rglob("samples_*.jsonl")).read_text().splitlines()) == 3
    assert not servers(tmp_path)
    alive = subprocess.run(["pgrep", "-f", f"serve {talker} --port 0"], capture_output=True, text=True, check=False)
    assert not alive.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a model"),
        (("runs/one",), "name the tasks"),
        (("runs/one", "--tasks"), "--tasks needs a value"),
        (("runs/one", "runs/two", "--tasks", "piqa"), "one model"),
        (("runs/one", "--task", "piqa"), "unknown option --task"),
        (("runs/one", "--tasks", "piqa", "--context", "2k"), "--context must be a number"),
        (("/nowhere", "--tasks", "piqa"), "/nowhere"),
    ],
)
def test_bad_input_is_one_line(few_shot, tmp_path, words, message):
    done = few_shot(*words)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert not servers(tmp_path)


def test_it_says_what_it_does(few_shot):
    done = few_shot("--help")
    assert done.returncode == 0 and "--tasks NAMES" in done.stdout


def test_a_task_that_is_not_there(few_shot, tiny, tmp_path):
    done = few_shot(tiny, "--tasks", "no_such_task")
    assert done.returncode != 0 and "no_such_task" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not servers(tmp_path)
