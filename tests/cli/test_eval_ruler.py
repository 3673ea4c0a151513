"""cortado eval ruler and its `niah`, from outside: a model that can't answer anything, asked by the rules."""

import json
import re
import shutil
import signal
import subprocess

import pytest
from until import wait_until

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
TRAINING = {"batch": 4, "context": 32, "steps": 20, "warmup": 2, "evaluate_every": 20, "tokenizer": "byte"}


@pytest.fixture(scope="module", name="model")
def fixture_model(train_run, tmp_path_factory, text):
    """Makes each byte a token, so that a prompt's tokens can be counted here."""
    return train_run(tmp_path_factory.mktemp("bytes"), text, training=TRAINING)


@pytest.fixture(name="ask")
def fixture_ask(cortado, model):
    def run(*arguments, **options):
        done = cortado("eval", "niah", model, "--threads", 1, "--json", *arguments, **options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def records(path):
    """Returns (settings, results) of a results file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["setting"]: line["value"] for line in lines if "setting" in line}, [line for line in lines if "setting" not in line]


def test_prompts_are_rulers_and_fill_the_length(ask, text, tmp_path):
    out = tmp_path / "niah.jsonl"
    summary = ask("--tasks", "single_1,single_2,single_3", "--lengths", "768,1024", "--samples", 3, "--haystack", text, "--out", out)
    _, results = records(out)
    assert len(results) == 18 and len(summary) == 6
    for result in results:
        uuid = result["task"] == "single_3"
        kind, (value,) = "uuid" if uuid else "number", result["outputs"]
        head, *context, question = result["input"].split("\n")
        assert head == (
            f"A special magic {kind} is hidden within the following text. Make sure to memorize it. "
            f"I will quiz you about the {kind} afterwards."
        )
        key = re.fullmatch(rf"What is the special magic {kind} for ([a-z]+-[a-z]+) mentioned in the provided text\?", question)[1]
        assert result["answer_prefix"] == f" The special magic {kind} for {key} mentioned in the provided text is"
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}" if uuid else r"\d{7}", value)
        needle = f"One of the special magic {kind}s for {key} is: {value}."
        if result["task"] == "single_1":
            assert needle in context[:-1] and all(line in (needle, NOISE) for line in context)
        else:
            assert len(context) == 1 and needle in context[0]
        tokens = len((result["input"] + result["answer_prefix"]).encode())
        assert result["prompt_tokens"] == tokens
        unit = len(NOISE) + 1 if result["task"] == "single_1" else 30
        assert result["length"] - unit < tokens + 128 <= result["length"]
        assert result["answer_tokens"] <= 128 and result["correct"] == (value in result["pred"].lower())
    assert len({result["outputs"][0] for result in results}) == 18


def test_caches_may_have_fewer_bits(cortado, train_run, text, tmp_path):
    run, out = train_run(tmp_path / "softmax", text, mixer={"mixer": "softmax"}, training=TRAINING | {"steps": 1}), tmp_path / "niah.jsonl"
    for kind in ("float32", "bfloat16"):
        done = cortado("eval", "niah", run, "--lengths", 768, "--samples", 1, "--label", kind, "--kv-type", kind, "--out", out)
        assert done.returncode == 0, done.stderr
    whole, half = [result["state_bytes"] for result in records(out)[1]]
    assert 0.45 * whole < half < 0.55 * whole
    mixed = cortado("eval", "niah", run, "--lengths", 768, "--samples", 2, "--label", "float32", "--kv-type", "float16", "--out", out)
    assert mixed.returncode == 2 and "float32" in mixed.stderr


def answers(path):
    """Sorts by index, because questions are asked in an order in which batches share prefixes."""
    results = [{key: value for key, value in result.items() if key != "seconds"} for result in records(path)[1]]
    return sorted(results, key=lambda result: (result["task"], result["length"], result["index"]))


def test_batches_change_nothing(ask, tmp_path):
    one, four = tmp_path / "one.jsonl", tmp_path / "four.jsonl"
    arguments = ["--lengths", 768, "--samples", 4]
    ask(*arguments, "--batch", 1, "--out", one)
    ask(*arguments, "--batch", 4, "--out", four)
    assert answers(one) == answers(four)


def test_samples_are_added_and_kept(ask, tmp_path):
    out, whole = tmp_path / "parts.jsonl", tmp_path / "whole.jsonl"
    ask("--lengths", 768, "--samples", 2, "--out", out)
    first = out.read_text()
    assert ask("--lengths", 768, "--samples", 5, "--out", out)[0]["samples"] == 5
    assert out.read_text().startswith(first)
    ask("--lengths", 768, "--samples", 5, "--out", whole)
    assert answers(out) == answers(whole)
    settings, _ = records(out)
    assert settings["seed"] == 42


def test_one_file_for_several_models(cortado, model, ask, tmp_path):
    out = tmp_path / "models.jsonl"
    ask("--lengths", 768, "--samples", 1, "--out", out, "--label", "first")
    done = cortado("eval", "niah", model, "--lengths", 1024, "--samples", 1, "--out", out, "--label", "second")
    head, _, first, second = done.stdout.splitlines()
    assert re.split(r"\s{2,}", head.strip()) == ["right, %", "single_1 768", "single_1 1,024"]
    assert first.split() == ["first", "0.0"] and second.split() == ["second", "0.0"]


def test_a_file_made_otherwise_is_refused(refused, trained, model, ask, text, tmp_path):
    out = tmp_path / "niah.jsonl"
    ask("--lengths", 768, "--samples", 1, "--out", out)
    before = out.read_text()
    common = ["--lengths", 768, "--samples", 1, "--out", out]
    assert "seed 42, not 7" in refused("eval", "niah", model, *common, "--seed", 7)
    assert "plain" in refused("eval", "niah", model, *common, "--plain")
    assert "model run" in refused("eval", "niah", trained, *common, "--label", "run")
    assert "eval ruler" in refused("eval", "ppl", model, "--data", text, "--out", out)
    assert out.read_text() == before
    out.write_text("my notes\n")
    assert "not a file of results" in refused("eval", "niah", model, *common)
    assert out.read_text() == "my notes\n"


def test_ctrl_c_keeps_what_is_done(program, model, ask, tmp_path):
    out, whole = tmp_path / "niah.jsonl", tmp_path / "whole.jsonl"
    arguments = ["--lengths", "4096", "--samples", "30", "--batch", "1"]
    command = [program, "eval", "niah", model, "--threads", "1", "--out", out, *arguments]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: out.exists() and len(records(out)[1]) >= 2, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "niah.jsonl" in errors
    kept = records(out)[1]
    assert 2 <= len(kept) < 30
    ask(*arguments, "--out", out)
    ask(*arguments, "--out", whole)
    assert answers(out) == answers(whole) and records(out)[1][: len(kept)] == kept


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--tasks", "single_4"], "single_1"),
        (["--tasks", "qa_squad"], "--squad"),
        (["--tasks", "qa_hotpot"], "--hotpotqa"),
        (["--tasks", "multiquery"], "--haystack"),
        (["--tasks", "single_2"], "--haystack"),
        (["--tasks", "own", "--needles", "missing.jsonl"], "--haystack"),
        (["--tasks", "own", "--haystack", __file__], "--needles"),
        (["--tasks", "own", "--haystack", __file__, "--needles", __file__], "line 1"),
        (["--lengths", "200"], "no room"),
        (["--lengths", "0"], "lengths"),
        (["--samples", "0"], "samples"),
        (["--batch", "0"], "batch"),
        (["--tasks", "single_2", "--haystack", "missing.txt"], "missing.txt"),
        (["--out", "missing/niah.jsonl"], "missing/niah.jsonl"),
        (["--lenghts", "512"], "--lengths"),
    ],
)
def test_bad_usage_is_one_line(refused, model, arguments, word):
    assert word in refused("eval", "niah", model, *arguments)


def test_what_is_named_twice_is_asked_once(cortado, model):
    words = ["--tasks", "single_1,single_1", "--lengths", "768,768", "--samples", 1, "--json"]
    (line,) = json.loads(cortado("eval", "niah", model, *words).stdout)
    assert line["samples"] == 1


def test_needles_in_words_of_the_users(cortado, model, text, tmp_path):
    needles, out = tmp_path / "needles.jsonl", tmp_path / "own.jsonl"
    needles.write_text(json.dumps({"needle": "For {key}, dial {value}.", "question": "What is dialled for {key}?", "answer": "For {key}, dial"}))
    asked = ["--haystack", text, "--needles", needles, "--tasks", "own", "--lengths", 768, "--samples", 2, "--json", "--out", out]
    (line,) = json.loads(cortado("eval", "niah", model, *asked).stdout)
    assert line["task"] == "own" and line["samples"] == 2
    assert all(answer["answer_prefix"].startswith(" For ") and answer["answer_prefix"].endswith(", dial") for answer in answers(out))


def test_refused_before_anything_is_asked(refused, model, trained, text, tmp_path):
    out = tmp_path / "niah.jsonl"
    common = ["--lengths", 768, "--samples", 1, "--out", out]
    assert "can run as window" in refused("eval", "niah", model, trained, "--memory", "window", *common)
    shutil.copytree(model, tmp_path / "mute")
    shutil.rmtree(tmp_path / "mute" / "tokenizer")
    assert "tokenizer" in refused("eval", "niah", model, tmp_path / "mute", *common)
    assert not out.exists() or not records(out)[1]
    assert "stands before niah" in refused("eval", "--json", "niah", model, *common)
    assert "stands before ppl" in refused("eval", "--text", text, "ppl", model, "--data", text)


def test_says_where_softmax_was_not_trained(cortado, train_run, text, tmp_path):
    run = train_run(tmp_path, text, mixer={"mixer": "softmax"}, positions="rotary", training=TRAINING, context=32)
    done = cortado("eval", "niah", run, "--lengths", 768, "--samples", 1)
    assert done.returncode == 0 and "was trained on 32 tokens" in done.stderr


def test_names_of_several_models(refused, model):
    assert "twice" in refused("eval", "niah", model, model)
    assert "label" in refused("eval", "niah", model, f"{model}/", "--label", "a")


def test_learned_positions_that_end(refused, train_run, text, tmp_path):
    run = train_run(tmp_path, text, mixer={"mixer": "softmax"}, positions="learned", training=TRAINING, context=32)
    line = refused("eval", "niah", run, "--lengths", 768, "--samples", 1)
    assert "768" in line and "32" in line and "position" in line


def squad(path):
    """Writes two questions on two articles in SQuAD 2.0's format."""
    asked = {"question": "Who barks?", "id": "1", "is_impossible": False, "answers": [{"text": "A dog", "answer_start": 0}]}
    never = {"question": "Why?", "id": "2", "is_impossible": True, "answers": []}
    first = {"title": "Dogs", "paragraphs": [{"context": "A dog barks.", "qas": [asked, never]}]}
    other = {"title": "Cats", "paragraphs": [{"context": "Cats purr.", "qas": [asked | {"question": "Who purrs?"}]}]}
    path.write_text(json.dumps({"version": "v2.0", "data": [first, other]}))
    return path


def test_all_that_the_files_allow(cortado, model, text, tmp_path):
    out = tmp_path / "ruler.jsonl"
    words = ["--samples", 2, "--lengths", 3000, "--haystack", text, "--squad", squad(tmp_path / "dev.json"), "--out", out]
    done = cortado("eval", "ruler", model, "--threads", 1, *words)
    assert done.returncode == 0, done.stderr
    head = re.split(r"\s{2,}", done.stdout.splitlines()[0].strip())
    needles = ["multikey_1", "multikey_2", "multikey_3", "multiquery", "multivalue", "single_1", "single_2", "single_3"]
    tasks = sorted([*needles, "vt", "cwe", "fwe", "qa_squad"])
    assert head == ["right, %", *(f"{task} 3,000" for task in tasks), "mean 3,000"]
    answer_tokens = {"vt": 30, "cwe": 120, "fwe": 50, "qa_squad": 32}
    _, results = records(out)
    assert len(results) == 2 * len(tasks)
    for result in results:
        room = answer_tokens.get(result["task"], 128)
        assert result["prompt_tokens"] == len((result["input"] + result["answer_prefix"]).encode())
        assert result["prompt_tokens"] + room <= 3000 and result["answer_tokens"] <= room
        said = [reference.lower() in result["pred"].lower() for reference in result["outputs"]]
        assert result["score"] == (any(said) if result["task"] == "qa_squad" else sum(said) / len(said))


def test_names_as_ruler_writes_them(ask):
    (line,) = ask("--tasks", "niah_single_1,single_1", "--lengths", 768, "--samples", 1)
    assert line["task"] == "single_1" and line["samples"] == 1


def test_results_of_earlier_versions_go_on(ask, tmp_path):
    out = tmp_path / "niah.jsonl"
    ask("--lengths", 768, "--samples", 2, "--out", out)
    old = out.read_text().replace("eval ruler", "eval niah")
    old = re.sub(r'"score":[0-9.]+,"correct":false', '"correct":true', old)
    out.write_text(old)
    (line,) = ask("--lengths", 768, "--samples", 3, "--out", out)
    assert line["samples"] == 3 and line["score"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("content", ["{}", '{"data": [{"title": "no paragraphs"}]}', '{"data": []}', "not JSON"])
def test_a_file_that_is_not_squad(refused, model, tmp_path, content):
    (tmp_path / "dev.json").write_text(content)
    words = ["--tasks", "qa_squad", "--squad", tmp_path / "dev.json", "--lengths", 1024, "--samples", 1]
    assert "dev.json" in refused("eval", "ruler", model, *words)
