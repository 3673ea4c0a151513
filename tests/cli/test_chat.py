"""cortado generate --chat, from outside: a tiny model that was given a tokenizer with a chat template."""

import json
import re
import select
import shutil
import signal
import subprocess

import pytest

OPTIONS = ("--temperature", 0, "--threads", 1)


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def write_tokenizer(folder, size, stops, prefix=()):
    """`size` tokens: two marks and characters, ChatML; a text begins with `prefix`."""
    characters = [c for c in map(chr, range(0x20, 0x20 + size)) if c not in "<|>"]
    tokens = ["<|im_start|>", "<|im_end|>", "\n", *characters][:size]
    pieces = json.dumps({"tokens": tokens, "merges": []})
    marks = [
        {"id": i, "text": tokens[i], "special": True} | dict.fromkeys(("normalized", "lstrip", "rstrip", "single_word", "apart"), False)
        for i in (0, 1)
    ]
    special = {"begin": 0, "end": 1, "unknown": None, "padding": None, "prefix": list(prefix), "suffix": [], "stops": stops}
    settings = {
        "format": "cortado tokenizer", "version": 1, "kind": "bpe", "vocabulary": size, "unknown": None,
        "byte_fallback": False, "fuse_unknown": False, "ignore_merges": False, "normalizer": [], "pre_tokenizer": [],
        "decoder": [], "special": {**special, "chat": {"name": "chatml", "system": ""}}, "added": marks,
        "pieces_hash": fnv(pieces.encode()),
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    (folder / "pieces.json").write_text(pieces)


@pytest.fixture(scope="module", name="talker")
def fixture_talker(trained, tmp_path_factory):
    """A run whose model never ends an answer."""
    folder = tmp_path_factory.mktemp("talker") / "run"
    shutil.copytree(trained, folder)
    size = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())["vocabulary"]
    write_tokenizer(folder / "tokenizer", size, [])
    return folder


def figures(stderr):
    """Returns the summary's (tokens read, tokens written, depth)."""
    words = {line.split()[0]: line.split() for line in stderr.splitlines() if line.strip()}
    after = words["state"]
    number = int(after[after.index("after") + 1].replace(",", ""))
    return int(words["prompt"][1]), int(words["decode"][1].replace(",", "")), number


def test_one_question(cortado, talker):
    done = cortado("generate", talker, "--chat", "--prompt", "HI", "--n-tokens", 7, *OPTIONS)
    assert done.returncode == 0, done.stderr
    # <|im_start|>user\nHI<|im_end|>\n<|im_start|>assistant\n, of which the tokenizer knows marks, newlines and capitals.
    read, written, depth = figures(done.stderr)
    assert (read, written, depth) == (read, 7, read + 7)
    assert "im_start" not in done.stdout


def test_lines_are_one_conversation(cortado, talker, tmp_path):
    state = tmp_path / "chat.state"
    done = cortado("generate", talker, "--chat", "--n-tokens", 5, "--save-state", state, *OPTIONS, input="HI\n\nHO\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 2  # one answer per line; the empty line asks nothing
    read, written, depth = figures(done.stderr)
    assert written == 10 and depth == read + 10
    more = cortado("generate", talker, "--chat", "--n-tokens", 5, "--load-state", state, *OPTIONS, input="HI\n")
    assert more.returncode == 0 and figures(more.stderr)[2] > depth
    at_once = cortado("generate", talker, "--chat", "--n-tokens", 5, *OPTIONS, input="HI\nHO\nHI\n")
    assert figures(at_once.stderr)[2] == figures(more.stderr)[2]
    assert at_once.stdout == done.stdout + more.stdout


def test_system_message_is_read(cortado, talker):
    def read(*more):
        return figures(cortado("generate", talker, "--chat", "--prompt", "HI", "--n-tokens", 1, *OPTIONS, *more).stderr)[0]

    assert read("--system", "BE BRIEF") > read() + 8


def test_end_of_turn_ends_the_answer(cortado, talker, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(talker, folder)
    size = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())["vocabulary"]
    write_tokenizer(folder / "tokenizer", size, list(range(size)))  # every token ends it
    done = cortado("generate", folder, "--chat", *OPTIONS, input="HI\nHO\n")
    assert figures(done.stderr)[1] == 2
    assert done.stdout == "\n\n"
    assert figures(cortado("generate", folder, "--prompt", "HI", *OPTIONS).stderr)[1] == 1  # without --chat too


def read_until_quiet(process, seconds=2):
    """Reads until nothing more comes: a running answer prints all the time."""
    while select.select([process.stdout], [], [], seconds)[0] and process.stdout.read(65536):
        pass


def test_interrupt_ends_the_answer_only(program, talker):
    command = [program, "generate", talker, "--chat", "--n-tokens", 10**9, *OPTIONS]
    pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    with subprocess.Popen(list(map(str, command)), bufsize=0, **pipes) as process:
        for question in (b"HI\n", b"HO\n"):
            process.stdin.write(question)
            assert process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            read_until_quiet(process)
        _, errors = process.communicate(timeout=300)  # closes the input
    assert process.returncode == 0, errors
    assert b"decode" in errors


def test_what_is_no_text_is_left_out(program, talker, tmp_path):
    command = [program, "generate", talker, "--chat", "--n-tokens", 3, "--save-state", tmp_path / "state", *OPTIONS]
    done = subprocess.run(list(map(str, command)), input=b"HI\nx\xff\nHO\n", capture_output=True, check=False, timeout=300)
    assert done.returncode == 2 and done.stderr.count(b"UTF-8") == 2
    assert figures(done.stderr.replace(b"[chat] ", b"chat ").decode())[1] == 6 and (tmp_path / "state").exists()


def test_rows_without_a_token_are_never_written(cortado, talker, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(talker, folder)
    size = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())["vocabulary"]
    write_tokenizer(folder / "tokenizer", size - 8, [])  # as Qwen2's embedding has more rows than tokens
    done = cortado("generate", folder, "--prompt", "HI", "--n-tokens", 300, "--seed", 1, "--threads", 1)
    assert done.returncode == 0, done.stderr
    assert cortado("generate", folder, "--chat", "--prompt", "HI", "--n-tokens", 100, "--threads", 1).returncode == 0


def test_interrupt_ends_the_reading(program, trained, tmp_path):
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("HI THERE " * 100_000)
    state = tmp_path / "state"
    command = [program, "generate", trained, "--prompt-file", prompt, "--echo", "--n-tokens", 1, "--save-state", state, *OPTIONS]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.read(900_000)  # then it reads
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert b"no state is saved" in errors and not state.exists()
    assert 0 < int(re.search("after ([0-9,]+) tokens", errors.decode())[1].replace(",", "")) < 900_000


def test_refusals(refused, trained, talker):
    assert "was not taught to chat" in refused("generate", trained, "--chat", "--prompt", "x")
    assert "--json" in refused("generate", talker, "--chat", "--json", "--prompt", "x")
    assert "--chat" in refused("generate", talker, "--system", "x", "--prompt", "x")
