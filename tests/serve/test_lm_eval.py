"""lm-eval by its `local-completions` on `cortado serve`, against its own `hf` model on the exported folder."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

TASKS = pathlib.Path(__file__).parent / "tasks"
QUESTIONS = [
    ("The capital of France is", [" Paris", " London", " a kind of cheese"], 0),
    ("The opposite of hot is", [" warm", " cold", " seven"], 1),
    ("Two and two are", [" five", " four", " blue"], 1),
    ("The sun rises in the", [" east", " west", " pocket"], 0),
    ("Water is made of hydrogen and", [" gold", " sleep", " oxygen"], 2),
    ("A triangle has", [" three sides", " nine sides", " no friends"], 0),
]
TEXTS = [
    "The quick brown fox jumps over the lazy dog. It was a bright cold day in April.",
    "An apple a day keeps the doctor away, or so they say; the doctor does not agree.",
]


@pytest.fixture(scope="module", name="tasks")
def fixture_tasks(tmp_path_factory):
    """The tasks' folder, with their data."""
    folder = tmp_path_factory.mktemp("tasks")
    questions, texts = folder / "questions.jsonl", folder / "texts.jsonl"
    keys = ("question", "choices", "answer")
    questions.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in QUESTIONS))
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for path in TASKS.glob("*.yaml"):
        text = path.read_text().replace("CHOICE", str(questions)).replace("TEXTS", str(texts))
        (folder / path.name).write_text(text)
    return folder


# In one process, and without lm-eval's own thousands of tasks: reading those takes longer than all questions.
EVALUATE = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
tasks = TaskManager(include_path=sys.argv[1], include_defaults=False)
answered = []
for call in json.loads(sys.argv[2]):
    samples = simple_evaluate(**call, task_manager=tasks, batch_size=1, log_samples=True)["samples"]
    answered.append({name: [line["filtered_resps"] for line in sorted(lines, key=lambda line: line["doc_id"])]
                     for name, lines in samples.items()})
json.dump(answered, open(sys.argv[3], "w"))
"""


def evaluate(tasks, out, *calls):
    """Of each call the samples by task: (what was answered) lists in the order of the documents."""
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tasks / "cache"),
        "OPENAI_API_KEY": "none", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-c", EVALUATE, tasks, json.dumps(calls), out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


def flat(value):
    return [item for part in value for item in flat(part)] if isinstance(value, list) else [value]


def numbers(value):
    """Log-likelihoods as numbers, whether lm-eval wrote them as such or as text."""
    found = []
    for item in flat(value):
        try:
            found.append(float(item))
        except (TypeError, ValueError):
            found.append(item)
    return found


def test_the_same_as_hf(program, start_server, talker, tasks, tmp_path):
    folder = tmp_path / "hf"
    subprocess.run([program, "export", talker, "--out", folder], check=True, capture_output=True)
    names = ["cortado_choice", "cortado_perplexity", "cortado_generation"]
    with start_server(talker) as server:
        there = f"model=smollm2,base_url={server.address}/v1"
        expected, found, talked = evaluate(
            tasks, tmp_path / "answered.json",
            {"model": "hf", "tasks": names, "model_args": f"pretrained={folder},dtype=float32,max_length=512", "device": "cpu"},
            {"model": "local-completions", "tasks": names,
             "model_args": f"{there}/completions,tokenizer={folder},tokenizer_backend=huggingface,tokenized_requests=True,"
                           "num_concurrent=1,max_length=512"},
            {"model": "local-chat-completions", "tasks": names[2:], "apply_chat_template": True,
             "model_args": f"{there}/chat/completions,num_concurrent=2"},
        )  # fmt: skip
    assert found["cortado_generation"] == expected["cortado_generation"]
    for name in names[:2]:
        ours, theirs = numbers(found[name]), numbers(expected[name])
        assert len(ours) == len(theirs) > 0
        for one, other in zip(ours, theirs, strict=True):
            assert one == other if isinstance(other, str | bool) else abs(one - other) < 1e-3, (name, one, other)
    assert all(isinstance(answer, str) and answer for answer in flat(talked["cortado_generation"]))
