"""A small trained model that the command line's tests share."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios

import preloaded
import pytest

CONFIG = {
    "name": "tiny",
    "dim": 16,
    "heads": 2,
    "layers": 2,
    "mixer": {"mixer": "latte", "latents": 8},
    "feed_forward": {"type": "mlp", "dim": 32},
    "training": {"batch": 4, "context": 32, "steps": 20, "warmup": 2, "evaluate_every": 20, "tokenizer": "char"},
}


# MKL's products depend on their matrices' alignment unless this is set, and two runs must be equal.
SAME_PRODUCTS = {"MKL_CBWR": "COMPATIBLE"}


@pytest.fixture(autouse=True)
def same_products(monkeypatch):
    for name, value in SAME_PRODUCTS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def cortado(program):
    """The other tests' program, loaded with these variables: calls with another environment cannot fork from it."""
    with preloaded.Preloaded(program, **SAME_PRODUCTS) as it:
        yield it.run


@pytest.fixture(scope="session")
def train_run(cortado):
    """train_run(folder, text, **changes): trains CONFIG with changes on the text file; returns the run's folder."""

    def train(folder, text, **changes):
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.json"
        config.write_text(json.dumps({**CONFIG, **changes}))
        done = cortado("train", config, "--data", text, "--out", folder / "run", "--threads", 1)
        assert done.returncode == 0, done.stderr
        return folder / "run"

    return train


@pytest.fixture(scope="session")
def text(tmp_path_factory, root):
    """20,000 characters of Tiny Shakespeare."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text((root / "data/tinyshakespeare.txt").read_text()[:20000])
    return path


@pytest.fixture(scope="session")
def trained(once, train_run, text):
    """A Latte-Macchiato after 20 steps."""
    return once("trained", lambda folder: train_run(folder, text)) / "run"


@pytest.fixture(scope="session")
def trained_softmax(once, train_run, text):
    """A softmax model with learned positions for 32 tokens, after 20 steps."""
    options = {"mixer": {"mixer": "softmax"}, "positions": "learned", "context": 32}
    return once("trained_softmax", lambda folder: train_run(folder, text, **options)) / "run"


@pytest.fixture(scope="session")
def at_a_terminal(program):
    """at_a_terminal("mechanisms", columns=100) returns what the program prints to a terminal."""

    def run(*arguments, columns=80):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = [program, *map(str, arguments)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.DEVNULL) as process:
            os.close(theirs)
            shown = b""
            try:
                while part := os.read(ours, 65536):
                    shown += part
            except OSError:  # how a terminal ends on Linux
                pass
        os.close(ours)
        assert process.returncode == 0
        return shown.decode().replace("\r\n", "\n")

    return run
