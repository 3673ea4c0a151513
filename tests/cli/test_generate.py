"""cortado generate, from outside."""

import json
import os
import shutil
import signal
import subprocess

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
    assert len(done.stdout) == 50  # a newline is only added at a terminal
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
    assert result["text"] == generate("--prompt", "ROMEO:", "--n-tokens", 30).stdout
    assert len(result["token_ids"]) == 30


def test_state_is_constant_and_the_cache_is_not(generate, trained):
    def sizes(count):
        result = json.loads(generate("--prompt", "a", "--n-tokens", count, "--json").stdout)
        return result["state_bytes"], result["kv_cache_bytes"]

    (short, short_cache), (long, long_cache) = sizes(20), sizes(200)
    assert short == long
    assert long_cache == short_cache * 201 / 21


def test_cache_beside_the_state_has_the_models_key_heads(cortado, train_run, tmp_path, text):
    mixer = {"mixer": "softmax", "kv_heads": 1, "head_dim": 12}
    run = train_run(tmp_path / "grouped", text, mixer=mixer, positions="rotary")

    def read(*arguments):
        done = cortado("generate", run, "--prompt", "a" * 255, "--n-tokens", 1, "--json", "--threads", 1, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    whole = read()
    # 2 layers, one key and one value, 1 head of 12, 256 tokens.
    assert (whole["kv_cache_bytes"], whole["kv_cache_dtype"]) == (2 * 2 * 12 * 256 * 4, "float32")
    assert 0 < whole["state_bytes"] - whole["kv_cache_bytes"] < 100  # positions
    half = read("--kv-type", "bfloat16")
    assert (half["kv_cache_bytes"], half["kv_cache_dtype"]) == (2 * 2 * 12 * 256 * 2, "bfloat16")
    assert 0 < half["state_bytes"] - half["kv_cache_bytes"] < 100
    described = json.loads(cortado("describe", run, "--json").stdout)
    assert described["depths"][0]["kv_cache_bytes"] == 2 * 2 * 12 * 1024 * 4


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


def test_state_of_another_memory_is_refused_with_the_flags(cortado, refused, trained_softmax, tmp_path):
    state = tmp_path / "state"
    window = ("--memory", "window", "--window", 9)
    done = cortado("generate", trained_softmax, "--prompt", "a", "--n-tokens", 1, "--save-state", state, *window)
    assert done.returncode == 0, done.stderr
    line = refused("generate", trained_softmax, "--load-state", state, "--memory", "window", "--window", 5)
    assert "--memory window --window 9" in line and "--memory window --window 5" in line
    line = refused("generate", trained_softmax, "--load-state", state)
    assert "--memory window --window 9" in line and "no --memory" in line
    assert cortado("generate", trained_softmax, "--load-state", state, "--n-tokens", 1, *window).returncode == 0


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


def test_token_numbers_are_the_text(generate, trained):
    characters = json.loads((trained / "tokenizer" / "tokenizer.json").read_text())["characters"]
    ids = ",".join(str(characters.index(c)) for c in "ROMEO:")
    written = json.loads(generate("--prompt", "ROMEO:", "--n-tokens", 30, "--json", *GREEDY[:2]).stdout)
    assert generate("--prompt-tokens", ids, "--n-tokens", 30, *GREEDY[:2]).stdout == written["text"]


def test_a_run_without_a_tokenizer_reads_and_writes_token_numbers(cortado, generate, refused, trained, tmp_path):
    run, state = tmp_path / "run", tmp_path / "state"
    shutil.copytree(trained, run)
    shutil.rmtree(run / "tokenizer")
    for arguments in [("--prompt", "a"), ("--chat",), (), ("--prompt-tokens", "1", "--stop", "a")]:
        line = refused("generate", run, *arguments)
        assert "has no tokenizer" in line and "--prompt-tokens 1,2,3" in line
    expected = json.loads(generate("--prompt-tokens", "1,2,3", "--n-tokens", 9, "--json", *GREEDY[:2]).stdout)["token_ids"]
    done = cortado("generate", run, "--prompt-tokens", "1,2,3", "--n-tokens", 5, "--save-state", state, *GREEDY)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ",".join(map(str, expected[:5]))
    done = cortado("generate", run, "--load-state", state, "--n-tokens", 4, "--json", *GREEDY)
    assert json.loads(done.stdout)["token_ids"] == expected[5:]


def test_parts_make_up_the_whole_and_a_terminal_gets_a_newline(generate, at_a_terminal, trained, tmp_path):
    state = tmp_path / "state"
    first = generate("--prompt", "ROMEO:", "--n-tokens", 7, "--save-state", state, *GREEDY[:2]).stdout
    second = generate("--load-state", state, "--n-tokens", 8, *GREEDY[:2]).stdout
    whole = generate("--prompt", "ROMEO:", "--n-tokens", 15, *GREEDY[:2]).stdout
    assert first + second == whole and len(whole) == 15
    shown = at_a_terminal("generate", trained, "--prompt", "ROMEO:", "--n-tokens", 7, *GREEDY)
    assert shown == first + ("" if first.endswith("\n") else "\n")


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
        (["--prompt", "\u2603"], "\u2603"),  # a character that the tokenizer does not have
        (["--load-state", "/nowhere/state"], "/nowhere/state"),
        (["--prompt-tokens", "1,a"], "prompt-tokens"),
        (["--prompt-tokens", "1,-2"], "prompt-tokens"),
        (["--prompt-tokens", "1,100000"], "100000"),
        (["--prompt-tokens", "1", "--prompt", "a"], "prompt"),
        (["--prompt-tokens", "1", "--echo"], "echo"),
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
    process.communicate(timeout=300)
    assert process.returncode == 130
    done = cortado("generate", trained, "--load-state", state, "--n-tokens", 5)
    assert done.returncode == 0, done.stderr
