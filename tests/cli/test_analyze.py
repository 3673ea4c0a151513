"""cortado analyze, from outside: tables, JSON and pictures of every analysis."""

import json
import xml.dom.minidom

import pytest

TRAINING = {"batch": 4, "context": 32, "steps": 4, "warmup": 1, "evaluate_every": 4, "tokenizer": "char"}


@pytest.fixture(scope="module", name="runs")
def fixture_runs(train_run, tmp_path_factory, text, mechanisms):
    """Makes a run of each of these mixers that were not deleted."""
    folder = tmp_path_factory.mktemp("runs")
    mixers = {
        "macchiato": {"mixer": "macchiato", "latents": 8, "window": 5},
        "lola": {"mixer": "lola", "chunk": 4, "cache": 3},
        "gla": {"mixer": "gla"},
    }
    return {name: train_run(folder / name, text, mixer=mixer, training=TRAINING) for name, mixer in mixers.items() if name in mechanisms}


@pytest.fixture(name="analyze")
def fixture_analyze(cortado, tmp_path):
    """analyze(words) checks the table, the JSON and the pictures, and returns the findings."""

    def run(*words):
        out = tmp_path / words[0]
        done = cortado("analyze", *words, "--out", out, "--threads", 1)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) > 3 and set(lines[1]) <= {"-", " "} and lines[-1].endswith(str(out))
        pictures = sorted(out.glob("*.svg"))
        assert pictures
        for picture in pictures:
            assert xml.dom.minidom.parse(str(picture)).documentElement.tagName == "svg"
        assert (out / "table.md").read_text().startswith("|")
        found = json.loads((out / "finding.json").read_text())
        return found, [picture.stem for picture in pictures]

    return run


@pytest.mark.mechanism("lola")
def test_attention_of_several_memories(analyze, runs):
    found, pictures = analyze("attention", runs["lola"], "--tokens", 24, "--layers", 1, "--heads", 1)
    assert pictures == ["attention-1", "memories-1"]
    assert len(found["tokens"]) == 24 and [row["layer"] for row in found["summary"]] == [1, 1]
    weights = found["layers"][0]["heads"][0]["weights"]
    assert [sum(row) for row in weights] == pytest.approx([1] * 24, abs=1e-4)  # softmax and linear part share a denominator
    for t, row in enumerate(weights):
        assert row[t + 1 :] == [0] * (23 - t)
    for row in found["summary"]:
        assert sum(row["memories"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.mechanism("lola")
def test_attention_with_another_memory(analyze, runs):
    found, _ = analyze("attention", runs["lola"], "--memory", "window", "--window", 3, "--tokens", 12)
    for layer in found["layers"]:
        for head in layer["heads"]:
            for t, row in enumerate(head["weights"]):
                assert all(row[s] == 0 for s in range(max(0, t - 2)))


@pytest.mark.mechanism("macchiato")
def test_latents(analyze, runs):
    found, pictures = analyze("latents", runs["macchiato"], "--text", "the sea hears a star", "--heads", 2)
    assert pictures == ["latents-0", "latents-1"] and len(found["tokens"]) <= 20
    for layer in found["layers"]:
        for head in layer["heads"]:
            assert len(head["p"]) == 5  # the window and four latents
            assert [sum(column) for column in zip(*head["p"])] == pytest.approx([1] * len(found["tokens"]), abs=1e-5)


@pytest.mark.mechanism("lola")
def test_collisions(analyze, runs):
    words = ["--tokens", 20, "--window-pairs", 4, "--cache-pairs", 3, "--layers", 0, "--heads", 1]
    found, _ = analyze("collisions", runs["lola"], *words)
    assert [row["stored"] for row in found["summary"]] == [20, 16, 13]


def test_spectrum_of_vectors_and_of_a_model(analyze, runs):
    found, _ = analyze("spectrum", "--n", 24, "--d", "3,6", "--powers", 1)
    ranks = {(gram["kernel"], gram["d"]): gram["rank_9999"] for gram in found["grams"]}
    assert ranks[("(x'y)^1", 3)] == 3 and ranks[("(x'y)^1", 6)] == 6 and ranks[("exp(x'y)", 3)] > 3


@pytest.mark.mechanism("lola")
def test_spectrum_of_a_model(analyze, runs):
    found, _ = analyze("spectrum", runs["lola"], "--tokens", 16)
    assert {gram["n"] for gram in found["grams"]} == {16} and len(found["grams"]) == 4


def test_memory_of_hybrids(analyze):
    words = ["--mixers", "softmax,sliding_window:window=64", "--lengths", "1024,4096"]
    rows = analyze("memory", *words, "--softmax-every", 2)[0]["rows"]
    pairs = {(row["model"].split(":")[0], row["tokens"]): row["pairs"] for row in rows}
    assert pairs[("softmax", 4096)] == 4096
    assert pairs[("sliding_window", 4096)] == (4096 + 64) / 2


def test_scaling(analyze):
    words = ["--mixers", "softmax,latte:latents=8", "--lengths", "32,64", "--tokens", 64, "--rounds", 1]
    rows = analyze("scaling", *words, "--set", "dim=32", "--set", "layers=1")[0]["rows"]
    assert len(rows) == 2 * 2 * 3
    assert {row["mixer"] for row in rows} == {"softmax", "latte:latents=8"}


def test_scaling_of_bidirectional_forms(analyze, refused):
    words = ["--mixers", "latte:latents=8,linformer:latents=8:length=64", "--lengths", "32,64", "--sequences", 2]
    words += ["--rounds", 1, "--set", "dim=32", "--set", "layers=1"]
    rows = analyze("scaling", *words, "--set", "causal=false")[0]["rows"]
    assert {row["pass"] for row in rows} == {"forward", "with backward"}
    assert {row["mixer"] for row in rows} == {f"{name} (bidirectional)" for name in words[1].split(",")}
    assert {row["sequences"] for row in rows} == {2}
    assert "no causal form" in refused("analyze", "scaling", *words)


def test_convolution(analyze):
    found, _ = analyze("convolution", "--set", "slots=3", "--set", "period=3", "--tokens", 5)
    for slot, row in enumerate(found["contents"]):
        assert row == pytest.approx([float(t >= 2 and t % 3 == slot) for t in range(5)], abs=1e-9)


def test_json_instead_of_the_table(cortado):
    done = cortado("analyze", "convolution", "--tokens", 5, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["tokens"] == 5


@pytest.mark.parametrize(
    "words, message",
    [
        ((), "subcommand"),
        (("attention", "/nowhere"), "/nowhere"),
        (("memory", "--mixers", "sofmax"), "unknown mixer"),
        (("memory", "--mixers", "latte:latnets=8"), "latnets"),
        (("memory", "--mixers", "softmax", "--config", "/nowhere.json"), "/nowhere.json"),
        (("convolution", "--set", "slots=4"), "odd"),
        (("convolution", "--mixer", "softmax"), "depends on the tokens"),
        (("spectrum", "--n", "0"), "--n"),
        (("scaling", "--rounds", "0"), "--rounds"),
    ],
)
def test_bad_input_is_one_line(refused, words, message):
    assert message in refused("analyze", *words)


def test_runs_that_do_not_have_what_is_asked_for(refused, runs, tmp_path):
    assert "latents" in refused("analyze", "latents", runs["gla"])
    assert "without decay" in refused("analyze", "collisions", runs["gla"])
    assert "layers are 0 to 1" in refused("analyze", "attention", runs["gla"], "--layers", 2)
    assert "two tokens" in refused("analyze", "attention", runs["gla"], "--text", "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    refused("analyze", "attention", runs["gla"], "--tokens", 4, "--out", tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
