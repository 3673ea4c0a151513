"""cortado eval ppl, from outside."""

import json
import math
import re
import xml.etree.ElementTree

import pytest

LENGTHS = ["--lengths", "16,64,512", "--tokens", 1000]


@pytest.fixture(name="measure")
def fixture_measure(cortado, trained, text):
    def run(*arguments):
        done = cortado("eval", "ppl", trained, "--data", text, "--threads", 1, "--json", *LENGTHS, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_every_length_predicts_the_same_tokens(measure):
    lines = measure()
    assert [line["length"] for line in lines] == [16, 64, 512]
    for line in lines:
        assert line["tokens"] == 1000
        assert line["perplexity"] == pytest.approx(math.exp(line["loss"]))
        assert line["bits_per_byte"] == pytest.approx(line["loss"] / math.log(2))  # one byte per character here


def test_agrees_with_sliding_windows(cortado, trained, text, tmp_path):
    """Windows of `cortado eval` at stride L / 2 score the same tokens, with one more token of context."""
    part = tmp_path / "part.txt"
    part.write_text(text.read_text()[: 256 + 1024])
    ours = json.loads(cortado("eval", "ppl", trained, "--data", part, "--lengths", 512, "--tokens", 1024, "--json").stdout)
    theirs = json.loads(cortado("eval", trained, "--text", part, "--context", 512, "--json").stdout)
    assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=0.05)


def test_table_picture_and_going_on(cortado, trained, measure, text, tmp_path):
    out, svg = tmp_path / "ppl.jsonl", tmp_path / "ppl.svg"
    first = measure("--out", out, "--label", "first")
    before = out.read_text()
    assert measure("--out", out, "--label", "first", "--svg", svg) == first
    assert out.read_text() == before  # nothing was measured again
    arguments = ["--data", text, "--out", out, "--label", "second", "--lengths", "64,512", "--tokens", 1000, "--svg", svg]
    done = cortado("eval", "ppl", trained, *arguments)
    assert done.returncode == 0, done.stderr
    head, _, one, two = done.stdout.splitlines()
    assert head.split() == ["perplexity", "16", "64", "512"]
    assert one.split()[0] == "first" and len(one.split()) == 4
    assert two.split() == ["second", *(f"{line['perplexity']:.2f}" for line in first[1:])]
    picture = xml.etree.ElementTree.fromstring(svg.read_text())
    names = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"first", "second", "perplexity", "512"} <= set(names)
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == 5


def test_other_settings_are_refused(refused, trained, measure, text, tmp_path):
    out = tmp_path / "ppl.jsonl"
    measure("--out", out)
    run = ["eval", "ppl", trained, "--data", text, "--out", out]
    assert "tokens" in refused(*run, "--lengths", "512", "--tokens", 2000)
    assert "first token" in refused(*run, "--lengths", "1024", "--tokens", 1000)
    other = tmp_path / "other.txt"
    other.write_text(text.read_text()[100:])
    assert "text" in refused("eval", "ppl", trained, "--data", other, "--out", out, *LENGTHS)


def test_bad_input_is_one_line(refused, trained, trained_softmax, text, tmp_path):
    assert re.search("20,000 tokens.* 32,768 are needed", refused("eval", "ppl", trained, "--data", text))
    assert "missing.txt" in refused("eval", "ppl", trained, "--data", tmp_path / "missing.txt")
    assert "--data" in refused("eval", "ppl", trained)
    assert "lengths" in refused("eval", "ppl", trained, "--data", text, "--lengths", "1")
    assert "tokens" in refused("eval", "ppl", trained, "--data", text, "--tokens", 2**63 - 1)
    assert "missing/a.svg" in refused("eval", "ppl", trained, "--data", text, *LENGTHS, "--svg", tmp_path / "missing/a.svg")
    line = refused("eval", "ppl", trained_softmax, "--data", text, "--lengths", "64", "--tokens", 100)
    assert "64" in line and "position" in line
