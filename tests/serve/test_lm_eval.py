"""lm-eval's `local-completions` on `cortado serve`, against its own `hf` model on the exported folder."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # lm-eval

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


# Runs in one process and without lm-eval's own tasks: reading those takes longer than all questions.
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
    """Returns each call's samples by task, as lists of answers in the order of the documents."""
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
    """Returns log-likelihoods as numbers, even if lm-eval wrote them as text."""
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


@pytest.fixture(scope="module", name="demo")
def fixture_demo(program, root, tmp_path_factory):
    """`make demo`'s model after two steps: one token per character, and no token that begins or ends a text."""
    folder = tmp_path_factory.mktemp("demo")
    words = ["prepare", "data/tinyshakespeare.txt", "--tokenizer", "char", "--out", folder / "data"]
    subprocess.run([program, *words], check=True, capture_output=True, cwd=root)
    config = json.loads((root / "configs/macchiato-demo.json").read_text())
    config["training"]["evaluate_batches"] = 1
    (folder / "demo.json").write_text(json.dumps(config))
    words = ["train", folder / "demo.json", "--data", folder / "data", "--steps", 2, "--out", folder / "run"]
    subprocess.run([program, *map(str, words), "--quiet"], check=True, capture_output=True, cwd=root)
    return folder / "run"


@pytest.mark.mechanism("macchiato")
def test_the_demo_with_its_own_tokenizer(start_server, demo, tasks, tmp_path):
    """By the server's tokenizer, as nobody has one of this run's: the same as by texts, and as a conversation of one
    message, which is a text for this model. What is scored from its first letter needs one before it, a line end
    (token 0), for there is no mark that begins a text."""
    names = ["cortado_choice", "cortado_generation", "cortado_perplexity"]
    with start_server(demo) as server:
        there = f"model=run,base_url={server.address}/v1/completions,num_concurrent=1,max_length=512"
        remote, texts, talked = evaluate(
            tasks, tmp_path / "answered.json",
            {"model": "local-completions", "tasks": names,
             "model_args": f"{there},tokenizer_backend=remote,tokenized_requests=True,custom_prefix_token_id=0"},
            {"model": "local-completions", "tasks": names[1:2], "model_args": f"{there},tokenizer_backend=None,tokenized_requests=False"},
            {"model": "local-chat-completions", "tasks": names[1:2], "apply_chat_template": True,
             "model_args": f"model=run,base_url={server.address}/v1/chat/completions,num_concurrent=1"},
        )  # fmt: skip

        def scored(before, after):
            body = {"prompt": before + after, "echo": True, "logprobs": 1, "max_tokens": 0}
            scores = server.post("/v1/completions", body)[1]["choices"][0]["logprobs"]["token_logprobs"]
            return sum(scores[len(before) :])

        expected = [scored(question, choice) for question, choices, _ in QUESTIONS for choice in choices]
        found = numbers(remote["cortado_choice"])[::2]  # each comes with whether it is the likeliest
        assert found == pytest.approx(expected, abs=1e-3)
        assert numbers(remote["cortado_perplexity"]) == pytest.approx([scored("\n", text) for text in TEXTS], abs=1e-3)
    assert remote["cortado_generation"] == texts["cortado_generation"] == talked["cortado_generation"]
    assert all(isinstance(answer, str) and answer for answer in flat(remote["cortado_generation"]))
