"""cortado generate, from outside."""

import json
import os
import signal
import subprocess
import time

import pytest

GREEDY = ("--temperature", 0, "--threads", 1)


@pytest.fixture(name="generate")
def fixture_generate(cortado, trained):
    """Runs generate on the trained model; it must succeed."""

    def run(*arguments, **options):
        done = cortado("generate", trained, "--threads", 1, *arguments, **options)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_writes_as_many_characters_as_asked(generate):
    done = generate("--prompt", "ROMEO:", "--n-tokens", 50)
    assert len(done.stdout) in (50, 51)  # a newline is added unless the text ends with one
    assert "prompt   6 tokens" in done.stderr
    assert "decode   50 tokens" in done.stderr
    assert "after 56 tokens" in done.stderr


def test_seed_decides_the_text(generate):
    def write(seed):
        return generate("--prompt", "ROMEO:", "--seed", seed).stdout

    assert write(1) == write(1)
    assert write(1) != write(2)


def test_prompt_from_file_and_stdin(generate, tmp_path):
    (tmp_path / "prompt").write_text("ROMEO:\nBut soft")
    expected = generate("--prompt", "ROMEO:\nBut soft", *GREEDY[:2]).stdout
    assert generate("--prompt-file", tmp_path / "prompt", *GREEDY[:2]).stdout == expected
    assert generate(*GREEDY[:2], input="ROMEO:\nBut soft").stdout == expected
    assert generate("--prompt-file", "-", *GREEDY[:2], input="ROMEO:\nBut soft").stdout == expected
    assert generate("--prompt", "ROMEO:\nBut soft", "--echo", *GREEDY[:2]).stdout == "ROMEO:\nBut soft" + expected


def test_json_has_text_and_figures(generate):
    done = generate("--prompt", "ROMEO:", "--n-tokens", 30, "--json")
    result = json.loads(done.stdout)
    assert len(result["text"]) == 30
    assert (result["prompt_tokens"], result["tokens"], result["depth"], result["end"]) == (6, 30, 36, "tokens")
    assert result["state_bytes"] > 0 and result["tokens_per_second"] > 0
    assert result["text"] == generate("--prompt", "ROMEO:", "--n-tokens", 30).stdout.removesuffix("\n") or result[
        "text"
    ].endswith("\n")


def test_state_is_constant_and_the_cache_is_not(generate, trained):
    def sizes(count):
        result = json.loads(generate("--prompt", "a", "--n-tokens", count, "--json").stdout)
        return result["state_bytes"], result["kv_cache_bytes"]

    (short, short_cache), (long, long_cache) = sizes(20), sizes(200)
    assert short == long
    assert long_cache == short_cache * 201 / 21


def test_stop_strings_end_the_text_unprinted(generate):
    whole = json.loads(generate("--prompt", "ROMEO:", "--n-tokens", 120, "--json").stdout)["text"]
    stop = whole[40:43]
    cut = json.loads(generate("--prompt", "ROMEO:", "--n-tokens", 120, "--json", "--stop", stop, "--stop", "@never@").stdout)
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["end"] == "stop"
    assert cut["tokens"] == whole.index(stop) + len(stop)


def test_state_saved_and_loaded_goes_on_as_one_text(generate, tmp_path):
    def write(*arguments):
        return json.loads(generate("--json", "--seed", 3, *arguments).stdout)

    state = tmp_path / "state"
    whole = write("--prompt", "ROMEO:", "--n-tokens", 60)["text"]
    first = write("--prompt", "ROMEO:", "--n-tokens", 25, "--save-state", state)
    second = write("--load-state", state, "--n-tokens", 35)
    assert first["text"] + second["text"] == whole
    assert (second["prompt_tokens"], second["depth"]) == (0, 66)
    assert list(tmp_path.iterdir()) == [state]  # nothing temporary is left
    # A further prompt is read from there.
    read = write("--prompt", "ROMEO:" + first["text"] + "But soft", "--n-tokens", 10)["text"]
    assert write("--load-state", state, "--prompt", "But soft", "--n-tokens", 10)["text"] == read


def test_no_tokens_only_reads(generate, tmp_path):
    done = generate("--prompt", "ROMEO:", "--n-tokens", 0, "--save-state", tmp_path / "state")
    assert done.stdout == ""
    assert (tmp_path / "state").stat().st_size > 0


def test_state_of_another_model_is_refused(generate, refused, trained_softmax, tmp_path):
    state = tmp_path / "state"
    generate("--prompt", "ROMEO:", "--n-tokens", 1, "--save-state", state)
    assert "state" in refused("generate", trained_softmax, "--load-state", state)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "text"])
def test_broken_states_are_refused(generate, refused, trained, tmp_path, damage):
    state = tmp_path / "state"
    generate("--prompt", "ROMEO:", "--n-tokens", 1, "--save-state", state)
    content = bytearray(state.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[-5] ^= 0x10
    else:
        content = b"not a state"
    state.write_bytes(content)
    assert str(state) in refused("generate", trained, "--load-state", state)


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--prompt", ""], "empty"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--top-p", "0"], "top-p"),
        (["--prompt", "a", "--top-k", "-3"], "top-k"),
        (["--prompt", "a", "--min-p", "1.5"], "min-p"),
        (["--prompt", "a", "--repetition-penalty", "0"], "repetition"),
        (["--prompt", "a", "--n-tokens", "-1"], "n-tokens"),
        (["--prompt", "a", "--n-tokens", "many"], "n-tokens"),
        (["--prompt", "a", "--stop", ""], "stop"),
        (["--prompt", "a", "--prompt-file", "b"], "prompt"),
        (["--prompt-file", "/nowhere/file"], "/nowhere/file"),
        (["--prompt", "\u2603"], "\u2603"),  # a character that the tokenizer has not seen
        (["--load-state", "/nowhere/state"], "/nowhere/state"),
        (["--prompt", "a", "--temprature", "1"], "--temperature"),  # the nearest option is named
        (["--prompt", "a", "--checkpoint", "first"], "checkpoint"),
    ],
)
def test_bad_usage_is_one_line(refused, trained, arguments, word):
    assert word in refused("generate", trained, *arguments)


def test_missing_run(refused, tmp_path):
    assert str(tmp_path / "none") in refused("generate", tmp_path / "none", "--prompt", "a")


def test_learned_positions_end(refused, trained_softmax):
    assert "position" in refused("generate", trained_softmax, "--prompt", "a" * 33)


def test_unwritable_state_is_a_failure(cortado, trained, tmp_path):
    done = cortado("generate", trained, "--prompt", "a", "--n-tokens", 1, "--save-state", tmp_path / "no/such/state")
    assert done.returncode in (1, 2)
    assert "state" in done.stderr.splitlines()[-1]


def test_full_disk_is_a_failure(program, trained):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [program, "generate", trained, "--prompt", "a", "--n-tokens", "20"],
            stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )
    assert done.returncode == 1
    assert "standard output" in done.stderr


def test_interrupt_keeps_the_state(program, cortado, trained, tmp_path):
    state = tmp_path / "state"
    command = [program, "generate", trained, "--prompt", "a", "--n-tokens", "100000000", "--save-state", state]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(20)  # it is writing
    os.kill(process.pid, signal.SIGINT)
    start = time.monotonic()
    process.communicate(timeout=60)
    assert time.monotonic() - start < 30
    assert process.returncode == 130
    done = cortado("generate", trained, "--load-state", state, "--n-tokens", 5)
    assert done.returncode == 0, done.stderr
