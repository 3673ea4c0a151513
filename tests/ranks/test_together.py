"""Evaluations, sweeps and long prompts by several processes give one process's results, printed once."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file


@pytest.fixture(name="run")
def fixture_run(once, cortado, small):
    """A model of two layers after a few steps."""
    config = small({"steps": 6, "context": 256, "tokenizer": "byte"}, context=4096)

    def train(folder):
        assert cortado("train", config, "--out", folder, "--threads", 1).returncode == 0

    return once("run-of-ranks", train)


def told(group):
    """Returns what process 0 printed; the others print nothing."""
    codes, out, errors = group.end()
    assert codes == [0] * len(codes), errors
    assert not "".join(out[1:]) + "".join(errors[1:])
    return out[0]


def near(one, other, keys):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert all(a[key] == b[key] for key in keys), (a, b)
        assert all(a[key] == pytest.approx(b[key], rel=1e-5) for key in ("loss", "perplexity") if key in a)


def same_state(one, two):
    one, two = load_file(one), load_file(two)
    assert one.keys() == two.keys()
    for key, tensor in one.items():
        assert torch.allclose(tensor.double(), two[key].double(), rtol=1e-3, atol=1e-4), key


def test_losses_of_a_text(cortado, ranks, run, tmp_path):
    words = ["eval", run, "--text", tmp_path / "text.txt", "--context", "64,128", "--json"]
    one, two = json.loads(cortado(*words).stdout), json.loads(told(ranks(2, *words)))
    near(one, two, ("context", "tokens", "accuracy"))


@pytest.mark.slow
def test_perplexity_by_length(cortado, ranks, run, tmp_path):
    words = ["eval", "ppl", run, "--data", tmp_path / "text.txt", "--lengths", "32,100,512", "--tokens", "700", "--json"]
    one = json.loads(cortado(*words).stdout)
    two = json.loads(told(ranks(3, *words, "--out", tmp_path / "ppl.jsonl")))
    near(one, two, ("model", "length", "tokens"))
    # Known results are not measured again, and process 0's file has all of them.
    assert json.loads(told(ranks(2, *words, "--out", tmp_path / "ppl.jsonl"))) == two


def test_questions(cortado, ranks, run, tmp_path):
    words = ["eval", "niah", run, "--lengths", "700", "--samples", "5", "--batch", "2", "--plain", "--json"]
    one, two = (tmp_path / f"{name}.jsonl" for name in ("one", "two"))
    assert cortado(*words, "--out", one).returncode == 0
    told(ranks(2, *words, "--out", two))
    answers = [sorted((it["index"], it["pred"], it["score"]) for it in map(json.loads, path.read_text().splitlines()) if "pred" in it)
               for path in (one, two)]  # fmt: skip
    assert len(answers[0]) == 5 and answers[0] == answers[1]


@pytest.mark.slow
def test_a_long_prompt(cortado, ranks, layers_of_all, small, tmp_path):
    config = small({"steps": 1, "context": 64, "warmup": 0, "evaluate_every": 1}, context=6000, positions="learned", **layers_of_all)
    assert cortado("train", config, "--out", tmp_path / "run", "--threads", 1).returncode == 0
    words = ["generate", tmp_path / "run", "--prompt-file", tmp_path / "long.txt", "--temperature", "0", "--json"]
    (tmp_path / "long.txt").write_text((tmp_path / "text.txt").read_text()[:2600])
    one = json.loads(cortado(*words, "--n-tokens", "24").stdout)
    two = json.loads(told(ranks(2, *words, "--n-tokens", "24")))
    for key in ("text", "prompt_tokens", "depth", "state_bytes"):
        assert one[key] == two[key], key
    # Compares their states, and their states after a continuation.
    assert cortado(*words, "--n-tokens", "0", "--save-state", tmp_path / "one.state").returncode == 0
    told(ranks(2, *words, "--n-tokens", "0", "--save-state", tmp_path / "two.state"))
    same_state(tmp_path / "one.state", tmp_path / "two.state")
    further = [*words, "--n-tokens", "0", "--load-state", tmp_path / "one.state"]
    assert cortado(*further, "--save-state", tmp_path / "one.state").returncode == 0
    assert json.loads(told(ranks(2, *further[:-1], tmp_path / "two.state", "--save-state", tmp_path / "two.state")))["depth"] == 5200
    same_state(tmp_path / "one.state", tmp_path / "two.state")


def test_a_sweep(ranks, small, tmp_path):
    sweep = {"about": "seeds", "config": json.loads(small({"steps": 3, "evaluate_every": 3}).read_text()), "seeds": [1, 2, 3, 4, 5]}
    (tmp_path / "sweep.json").write_text(json.dumps(sweep))
    words = ["sweep", tmp_path / "sweep.json", "--out", tmp_path / "found"]
    out = told(ranks(2, *words))
    assert "5 of 5 runs" in out
    found = [json.loads(line) for line in (tmp_path / "found" / "results.jsonl").read_text().splitlines()]
    assert [it["status"] for it in found] == ["done"] * 5 and len({it["seed"] for it in found}) == 5
    assert not list((tmp_path / "found" / "runs").glob("*.claim"))


@pytest.mark.slow
def test_how_training_scales(cortado, tmp_path):
    done = cortado("bench", "scale", "--quick", "--rounds", "1", "--json", "--out", tmp_path / "scale")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["processes"], row["way"]) for row in rows] == [
        (1, "one process"), (2, "rows"), (2, "rows, shared optimiser"), (2, "sequences, joined"), (2, "sequences, handed on")]  # fmt: skip
    assert rows[1]["gradient_bytes"] > 0 and rows[3]["state_bytes"] > 0 and all(row["speedup"] > 0 for row in rows)
    assert json.loads((tmp_path / "scale/scale.json").read_text())["rows"] == rows and (tmp_path / "scale/scale.svg").exists()


def test_bench_scale_needs_python(cortado, monkeypatch):
    monkeypatch.setenv("PYTHON", "/nowhere")
    done = cortado("bench", "scale")
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "/nowhere can't be started" in done.stderr
    monkeypatch.delenv("PYTHON")
    done = cortado("bench", "scale", "--processes", "0")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--processes" in done.stderr


@pytest.mark.parametrize(("words", "message"), [
    (["eval", "{run}", "--text", "/nowhere"], "/nowhere"),
    (["eval", "{run}", "--text", "{text}", "--context", "8", "--stride", "9"], "--stride"),
    (["eval", "ppl", "{run}", "--data", "{text}", "--lengths", "65536"], "tokens, .* are needed"),
    (["eval", "task", "{run}"], "one process"),
    (["generate", "{run}", "--chat"], "one process"),
    (["generate", "{run}", "--prompt", ""], "prompt is empty"),
    (["generate", "{run}", "--prompt-tokens", "1,9999"], "outside the vocabulary"),
    (["sweep", "{run}/config.json"], "cortado: "),
    (["sweep", "{text}", "--dry-run"], "cortado: "),
])  # fmt: skip
@pytest.mark.slow
def test_what_is_wrong_is_said_once(ranks, run, tmp_path, words, message):
    words = [word.format(run=run, text=tmp_path / "text.txt") for word in words]
    codes, out, errors = ranks(2, *words).end()
    assert codes == [2, 2] and not "".join(out) + errors[1], (codes, errors)
    assert errors[0].startswith("cortado: ") and errors[0].count("\n") == 1 and re.search(message, errors[0]), errors[0]
