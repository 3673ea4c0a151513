"""cortado eval, from outside."""

import json
import math
import shutil

import pytest
from test_chat import write_tokenizer


@pytest.fixture(name="evaluate")
def fixture_evaluate(cortado, trained):
    """Evaluates the trained model; returns the list that --json prints."""

    def run(*arguments):
        done = cortado("eval", trained, "--json", "--threads", 1, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(name="short")
def fixture_short(text, tmp_path):
    path = tmp_path / "short.txt"
    path.write_text(text.read_text()[:1000])
    return path


def test_every_token_but_the_first_is_scored(evaluate, short):
    lines = evaluate("--text", short, "--context", "16,64,5000")
    assert [line["context"] for line in lines] == [16, 64, 5000]
    for line in lines:
        assert line["tokens"] == 999
        assert line["perplexity"] == pytest.approx(math.exp(line["loss"]))
        # This text has one byte per character.
        assert line["bits_per_byte"] == pytest.approx(line["loss"] / math.log(2))
        assert line["bits_per_character"] == pytest.approx(line["bits_per_byte"])
        assert 0 <= line["accuracy"] <= 1


def test_documents_are_separate(evaluate, short, tmp_path):
    whole = short.read_text()
    parts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    parts[0].write_text(whole[:400])
    parts[1].write_text(whole[400:])
    both = evaluate("--text", parts[0], "--text", parts[1], "--context", 64)[0]
    a, b = (evaluate("--text", part, "--context", 64)[0] for part in parts)
    assert both["tokens"] == a["tokens"] + b["tokens"] == 998
    total = a["loss"] * a["tokens"] + b["loss"] * b["tokens"]
    assert both["loss"] * both["tokens"] == pytest.approx(total, rel=1e-5)
    joined = tmp_path / "joined.txt"
    joined.write_text(whole[:400] + "<|end|>" + whole[400:])
    separated = evaluate("--text", joined, "--separator", "<|end|>", "--context", 64)[0]
    assert separated["loss"] == pytest.approx(both["loss"], rel=1e-5)


def test_several_texts_behind_one_option(evaluate, cortado, trained, short, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(short.read_text()[:300])
    expected = evaluate("--text", short, "--text", other, "--context", 64)[0]["loss"]
    assert evaluate("--text", short, other, "--context", 64)[0]["loss"] == expected
    done = cortado("eval", "--json", "--threads", 1, "--context", 64, "--text", short, other, trained)  # the run last
    assert json.loads(done.stdout)[0]["loss"] == expected


@pytest.fixture(name="marked")
def fixture_marked(trained, tmp_path):
    """The trained model with a tokenizer that begins texts with its first token."""
    run = tmp_path / "marked"
    shutil.copytree(trained, run)
    size = json.loads((run / "tokenizer" / "tokenizer.json").read_text())["vocabulary"]
    write_tokenizer(run / "tokenizer", size, [], prefix=[0])
    return run


def test_a_text_begins_as_the_model_expects_in_eval_and_generate(cortado, marked, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("HELLO WORLD AND ALL THAT IS IN IT\n" * 5)

    def run(*arguments):
        done = cortado(*arguments, "--json", "--threads", 1)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    for kind in (["eval", marked, "--text", text], ["eval", "ppl", marked, "--data", text, "--lengths", "8,16", "--tokens", 99]):
        with_mark, without = run(*kind)[0], run(*kind, "--no-bos")[0]
        assert with_mark["tokens"] == without["tokens"]
        assert with_mark["loss"] != without["loss"]
    generate = ["generate", marked, "--prompt", "HI", "--n-tokens", 1]
    assert (run(*generate)["prompt_tokens"], run(*generate, "--no-bos")["prompt_tokens"]) == (3, 2)


def test_bits_per_byte_counts_bytes_not_characters(cortado, train_run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\u00e4\u00f6" * 2000)  # two bytes per character
    run = train_run(tmp_path / "model", text)
    line = json.loads(cortado("eval", run, "--text", text, "--json").stdout)[0]
    assert line["bits_per_byte"] == pytest.approx(line["loss"] / math.log(2) / 2)


def test_table(cortado, trained, short):
    done = cortado("eval", trained, "--text", short, "--context", "32,64")
    assert done.returncode == 0
    head, _, first, second = done.stdout.splitlines()
    assert head.split() == ["context", "tokens", "loss", "perplexity", "bits/byte", "right,", "%", "tokens/s"]
    assert first.split()[:2] == ["32", "999"] and second.split()[:2] == ["64", "999"]


def test_limit(evaluate, short):
    assert evaluate("--text", short, "--context", 64, "--stride", 64, "--limit", 100)[0]["tokens"] == 128


def test_context_beyond_learned_positions(refused, trained_softmax, short):
    line = refused("eval", trained_softmax, "--text", short, "--context", "16,64")
    assert "64" in line and "32" in line and "position" in line


@pytest.mark.parametrize(
    "content, word",
    [(b"", "empty"), (b"a", "short"), (b"abc\xff\xfe", "UTF-8"), ("snow \u2603".encode(), "\u2603"), (None, "missing.txt")],
)
def test_bad_text_is_one_line(refused, trained, tmp_path, content, word):
    path = tmp_path / "missing.txt"
    if content is not None:
        path = tmp_path / "bad.txt"
        path.write_bytes(content)
    assert word in refused("eval", trained, "--text", path)


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--context", "0"], "context"),
        (["--context", "abc"], "context"),
        (["--context", "16", "--stride", "17"], "stride"),
        (["--stride", "0"], "stride"),
        (["--contxt", "16"], "--context"),
    ],
)
def test_bad_usage_is_one_line(refused, trained, short, arguments, word):
    assert word in refused("eval", trained, "--text", short, *arguments)


def test_text_is_required(refused, trained):
    assert "--text" in refused("eval", trained)


@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_broken_checkpoints_are_refused(refused, trained, short, tmp_path, damage):
    import shutil

    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for name in ("best.safetensors", "last.safetensors"):
        path = run / name
        if not path.exists():
            continue
        content = bytearray(path.read_bytes())
        if damage == "truncated":
            content = content[:-100]
        else:
            content[-7] ^= 0x40
        path.write_bytes(content)
    assert "safetensors" in refused("eval", run, "--text", short)
