"""Several processes train like one, and end together, whatever happens to one of them."""

import json
import re
import resource
import signal
import socket
import subprocess
import sys

import pytest
from quick import quick
from safetensors.torch import load_file
from until import wait_until

MQAR = {"name": "mqar", "length": 16, "pairs": 2, "vocabulary": 32, "examples": 15, "test_examples": 8}
KINDS = {
    "as it is": ({}, {}, []),
    "shared out": ({"accumulate": 2, "batch": 3}, {}, ["--share-optimizer"]),
    "packed": ({"packed": True, "batch": 3}, {}, []),
    "a row each at most": ({"batch": 1, "accumulate": 2}, {}, ["--share-optimizer"]),
    "examples and experts": ({"batch": 5, "steps": 8, "evaluate_every": 4}, {
        "task": MQAR, "context": 0, "feed_forward": {"type": "experts", "dim": 8, "experts": 6, "per_token": 1}}, []),
}  # fmt: skip


def close(one, other, tolerance):
    return all(abs(a - b) <= tolerance * max(1, abs(a)) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", quick(["shared out"], *KINDS))
def test_two_train_as_one(cortado, ranks, small, lines, tmp_path, kind):
    training, changes, words = KINDS[kind]
    config = small(training, **changes)
    if "task" in changes:
        config.write_text(json.dumps({key: value for key, value in json.loads(config.read_text()).items() if key != "positions"}))
    done = cortado("train", config, "--out", tmp_path / "one", "--threads", 1)
    assert done.returncode == 0, done.stderr
    codes, out, errors = ranks(2, "train", config, "--out", tmp_path / "two", *words).end()
    assert codes == [0, 0] and errors[1] == out[1] == "", errors
    assert "on 2 processes" in out[0] and out[0].count("trained ") == 1
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [line["step"] for line in one] == [line["step"] for line in two]
    first = [next(line["gradient_norm"] for line in run if "gradient_norm" in line) for run in (one, two)]
    assert close(first[:1], first[1:], 2e-6)
    for key in ("loss", "validation_loss"):
        assert close([line[key] for line in one if key in line], [line[key] for line in two if key in line], 1e-4), key
    for name in ("last.safetensors", "trainer.safetensors"):
        files = [load_file(tmp_path / run / name) for run in ("one", "two")]
        assert files[0].keys() == files[1].keys()
        assert all((files[0][key] - files[1][key]).abs().max() < 2e-3 for key in files[0])
    assert (tmp_path / "two" / "best.safetensors").exists()


@pytest.mark.slow
def test_small_batches_on_two_processes_are_one_large_one(cortado, ranks, small, lines, tmp_path):
    """A step's gradient is a mean over its targets, not over batches or processes: some examples have more targets."""
    task = {"name": "regbench", "examples": 24, "validation_examples": 3, "most_strings": 10, "longest_string": 8, "shuffle": False}
    changes = {"task": task, "context": 0, "positions": None}
    whole, parts = ({"batch": batch, "accumulate": accumulate, "steps": 4, "evaluate_every": 4} for batch, accumulate in ((12, 1), (3, 4)))
    done = cortado("train", small(whole, "whole.json", **changes), "--out", tmp_path / "one", "--threads", 1)
    assert done.returncode == 0, done.stderr
    codes, _, errors = ranks(2, "train", small(parts, "parts.json", **changes), "--out", tmp_path / "two").end()
    assert codes == [0, 0], errors
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    for key in ("loss", "gradient_norm"):
        first = [next(line[key] for line in run if key in line) for run in (one, two)]
        assert close(first[:1], first[1:], 1e-6), key
    assert close([line["loss"] for line in one if "loss" in line], [line["loss"] for line in two if "loss" in line], 1e-5)


@pytest.mark.slow
def test_a_group_of_one_makes_the_calls_of_many(cortado, ranks, small, lines, tmp_path):
    config = small()
    assert cortado("train", config, "--out", tmp_path / "alone", "--threads", 1).returncode == 0
    for words, environment in ((["--context-parallel", 1], {"CORTADO_PARTS": "join"}), (["--share-optimizer"], {})):
        codes, _, errors = ranks(1, "train", config, "--out", tmp_path / "grouped", "--overwrite", *words,
                                 of_rank={0: {"environment": environment}}).end()  # fmt: skip
        assert codes == [0], errors
        alone, grouped = lines(tmp_path / "alone"), lines(tmp_path / "grouped")
        assert all(close([line[key] for line in alone if key in line], [line[key] for line in grouped if key in line], 1e-5)
                   for key in ("loss", "validation_loss"))  # fmt: skip
        metrics = json.loads((tmp_path / "grouped" / "metrics.jsonl").read_text().splitlines()[0])
        assert metrics["gradient_bytes"] > 0  # through the group


@pytest.mark.slow
def test_goes_on_with_another_number_of_processes(cortado, ranks, small, lines, tmp_path):
    config = small()
    assert cortado("train", config, "--out", tmp_path / "one", "--threads", 1).returncode == 0
    shared = ("--share-optimizer",)
    for count, stop, words in ((2, ["--stop-at", 4], shared), (1, ["--stop-at", 8], ()), (3, [], shared)):
        begun = (tmp_path / "two").exists()
        command = ["train", *(["--resume"] if begun else [config]), "--out", tmp_path / "two", *stop, *words]
        codes, _, errors = ranks(count, *command, fresh=count == 2).end()
        assert codes == [0] * count, errors
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    assert [line["step"] for line in one] == [line["step"] for line in two]
    assert close([line["loss"] for line in one if "loss" in line], [line["loss"] for line in two if "loss" in line], 1e-4)


def refused(group, code, words):
    """Both end with this code, and one line of process 0 says why."""
    codes, out, errors = group.end()
    assert codes == [code, code] and out[1] == errors[1] == "", errors
    assert errors[0].count("\n") == 1 and errors[0].startswith("cortado: ") and re.search(words, errors[0]), errors[0]


@pytest.mark.parametrize(("words", "message"), [
    (["--set", "training.learning_rate=0.5"], "process 1 has another config than process 0"),
    (["--set", "training.batch=two"], "process 1: .*batch"),
    (["--data", "missing.txt"], "process 1: .*missing.txt"),
])  # fmt: skip
def test_processes_that_disagree(ranks, small, tmp_path, words, message):
    group = ranks(2, "train", small(), "--out", tmp_path / "run", of_rank={1: {"words": words}})
    refused(group, 2, message)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_another_text_of_the_same_name(ranks, small, tmp_path):
    config = small()
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "text.txt").write_text(("To be or not to be. " if number else "To be or not to do. ") * 200)
    config.write_text(config.read_text().replace(str(tmp_path / "text.txt"), "text.txt"))
    # The config names it by its path, so each process gets its own file at an equal path.
    group = ranks(2, "train", config, "--out", tmp_path / "run", of_rank={
        rank: {"before": lambda folder=folder: __import__("os").chdir(tmp_path / folder)} for rank, folder in enumerate("ab")})  # fmt: skip
    refused(group, 2, "process 1 has another (config|text or examples)")


@pytest.mark.slow
def test_a_folder_in_use_and_a_port_in_use(cortado, ranks, small, tmp_path):
    config = small()
    assert cortado("train", config, "--out", tmp_path / "run", "--steps", 1).returncode == 0
    refused(ranks(2, "train", config, "--out", tmp_path / "run"), 2, "already holds a run")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        environment = {"environment": {"CORTADO_TIMEOUT": "5"}}
        group = ranks(1, "train", config, "--out", tmp_path / "other", port=taken.getsockname()[1], of_rank={0: environment})
        codes, _, errors = group.end()
    assert codes == [1] and errors[0].splitlines()[-1].startswith("cortado: [ranks] the processes do not find each other: ")


@pytest.mark.slow
def test_no_room_for_the_checkpoint(ranks, small, tmp_path):
    limit = {"before": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))}
    group = ranks(2, "train", small(), "--out", tmp_path / "run", of_rank={0: limit})
    refused(group, 1, "safetensors")
    assert not list((tmp_path / "run").glob("*.safetensors"))


def begun(run, steps, group):
    """Waits until this many steps are logged."""
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > steps, group.processes[0])


LONG = {"steps": 100000, "evaluate_every": 100000}


@pytest.mark.slow
def test_one_that_is_told_to_stop_stops_all(cortado, ranks, small, tmp_path):
    group = ranks(2, "train", small(LONG), "--out", tmp_path / "run")
    begun(tmp_path / "run", 3, group)
    group.processes[1].send_signal(signal.SIGINT)
    codes, out, errors = group.end()
    assert codes == [0, 130] and "--resume" in out[0] + errors[0], (codes, errors)
    step = json.loads((tmp_path / "run" / "train.json").read_text())["step"]
    done = cortado("train", "--resume", "--out", tmp_path / "run", "--stop-at", step + 2)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("sent", "message"), [(signal.SIGKILL, "another process is gone"), (signal.SIGSTOP, "waited in vain")])
@pytest.mark.slow
def test_one_that_is_gone_or_hangs(ranks, small, tmp_path, sent, message):
    waits = {"environment": {"CORTADO_TIMEOUT": "15"}}
    group = ranks(2, "train", small(LONG), "--out", tmp_path / "run", of_rank={0: waits, 1: waits})
    begun(tmp_path / "run", 3, group)
    group.processes[1].send_signal(sent)
    _, error = group.processes[0].communicate(timeout=60)
    group.processes[1].kill()
    assert group.processes[0].returncode == 1 and error.count("\n") == 1 and message in error, error
    assert (tmp_path / "run" / "trainer.safetensors").exists()


def test_commands_for_one_process(ranks, tmp_path):
    refused(ranks(2, "export", tmp_path, fresh=True), 2, "export is for one process: leave torchrun out")
    codes, out, _ = ranks(1, "train", "--help", fresh=True).end()
    assert codes == [0] and "--share-optimizer" in out[0]


@pytest.mark.slow
def test_torchrun_goes_on_after_a_kill(root, small, lines, tmp_path):
    """scripts/kill_ranks.py: processes killed at random moments, and the losses of an undisturbed run in the end."""
    small({"steps": 1000, "evaluate_every": 50})
    command = [sys.executable, root / "scripts/kill_ranks.py", tmp_path / "config.json", "--out", tmp_path / "killed", "--kills", "2", "--apart", "10"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills" in done.stdout and "the same losses" in done.stdout


def moments(run):
    """Returns the gradients of the first step, up to a factor."""
    return {key: value for key, value in load_file(run / "trainer.safetensors").items() if key.startswith("first.")}


@pytest.mark.parametrize(("count", "way", "tokens"), [(3, "join", 50), (2, "hand", 50), (3, "hand", 50), (3, "join", 7)])
def test_every_mechanism_knows_what_lies_before(cortado, ranks, small, lines, layers_of_all, tmp_path, count, way, tokens):
    training = {"batch": 2, "context": tokens, "steps": 1, "warmup": 0, "evaluate_every": 1}
    config = small(training, context=tokens, positions="learned", **layers_of_all)
    assert cortado("train", config, "--out", tmp_path / "one", "--threads", 1).returncode == 0
    each = {rank: {"environment": {"CORTADO_PARTS": way}} for rank in range(count)}
    codes, _, errors = ranks(count, "train", config, "--out", tmp_path / "two", "--context-parallel", count, of_rank=each).end()
    assert codes == [0] * count, errors
    one, two = moments(tmp_path / "one"), moments(tmp_path / "two")
    assert one.keys() == two.keys()
    for key, gradient in one.items():
        # Parts of two or three tokens are too short for windows and most convolutions, and worse conditioned either way. The layers lie on
        # one another, so each mechanism more rounds all gradients below it once more: 1e-5 to 3e-5 with 33 to 35 of them.
        assert (gradient - two[key]).abs().max() <= (6e-5 if tokens == 50 else 3e-4) * gradient.abs().max() + 1e-9, key
    assert close(*([line["loss"] for line in lines(tmp_path / run) if "loss" in line] for run in ("one", "two")), 1e-5)


def test_rows_and_tokens_shared_out_at_once(cortado, ranks, small, lines, tmp_path):
    """Four processes: each pair has half of the rows, and each process of a pair half of the tokens."""
    config = small({"accumulate": 2, "batch": 3}, mixer={"mixer": "gla"})
    assert cortado("train", config, "--out", tmp_path / "one", "--threads", 1).returncode == 0
    codes, _, errors = ranks(4, "train", config, "--out", tmp_path / "four", "--context-parallel", 2, "--share-optimizer").end()
    assert codes == [0] * 4, errors
    assert close(*([line["loss"] for line in lines(tmp_path / run) if "loss" in line] for run in ("one", "four")), 1e-4)


@pytest.mark.parametrize(("training", "changes", "count", "message"), [
    ({}, {}, 3, "3 processes have no groups of 2 that share a sequence"),
    ({"packed": True}, {}, 2, "packed documents cannot lie over several processes"),
    ({"context": 1}, {}, 2, "sequences of 1 tokens have no 2 parts"),
])  # fmt: skip
def test_sequences_that_have_no_parts(ranks, small, tmp_path, training, changes, count, message):
    group = ranks(count, "train", small(training, **changes), "--out", tmp_path / "run", "--context-parallel", 2)
    codes, _, errors = group.end()
    assert codes == [2] * count and errors[0].count("\n") == 1 and message in errors[0] and not any(errors[1:]), errors


@pytest.mark.mechanism("lolcats")
def test_a_conversion_by_two(cortado, ranks, small, lines, tmp_path):
    """Attention transfer, then adapters, equal one process's; stopped, they are continued by one."""
    assert cortado("train", small(mixer={"mixer": "softmax"}), "--out", tmp_path / "model", "--threads", 1).returncode == 0
    words = ["linearize", tmp_path / "model", "--data", tmp_path / "text.txt", "--context", 32, "--batch", 3, "--tokens", 800, "--lora-tokens",
             400, "--evaluate-every", 3, "--evaluation-chunks", 4, "--window", 8, "--dtype", "float32", "--weights", "plain"]  # fmt: skip
    assert cortado(*words, "--out", tmp_path / "one", "--threads", 1).returncode == 0
    codes, out, errors = ranks(2, *words, "--out", tmp_path / "two", "--stop-at", 3).end()
    assert codes == [0, 0] and out[1] == errors[1] == "", errors
    assert json.loads((tmp_path / "two" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 3
    codes, _, errors = ranks(2, "linearize", "--resume", "--out", tmp_path / "two").end()
    assert codes == [0, 0], errors
    one, two = lines(tmp_path / "one"), lines(tmp_path / "two")
    for key in ("loss", "evaluation_loss"):
        assert close([line[key] for line in one if key in line], [line[key] for line in two if key in line], 1e-4), key
    files = [load_file(tmp_path / run / "last.safetensors") for run in ("one", "two")]
    assert all((files[0][key] - files[1][key]).abs().max() < 2e-3 for key in files[0])
