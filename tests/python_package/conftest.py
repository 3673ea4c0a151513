"""The package in the source tree, with the library that was just built; test_wheel.py tests it as users get it."""

import hashlib
import json
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python"))


CONFIG = {"name": "small", "dim": 32, "heads": 4, "layers": 2, "positions": "rotary", "context": 64,
          "feed_forward": {"type": "mlp", "dim": 48},
          "training": {"batch": 4, "context": 32, "steps": 20, "warmup": 2, "evaluate_every": 20, "tokenizer": "char"}}  # fmt: skip


@pytest.fixture(scope="session", name="trained")
def fixture_trained(once, cortado, root):
    """trained(mixer={...}) returns a run's folder: a small model after 20 steps of the program."""

    def train(**changes):
        def make(folder):
            folder.mkdir()
            (folder / "text.txt").write_text((root / "data/tinyshakespeare.txt").read_text()[:20000])
            (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
            done = cortado("train", folder / "config.json", "--data", folder / "text.txt", "--out", folder / "run",
                           "--threads", 1)  # fmt: skip
            assert done.returncode == 0, done.stderr

        return once("trained-" + hashlib.sha256(json.dumps(changes).encode()).hexdigest()[:12], make) / "run"

    return train


@pytest.fixture(scope="session", name="run")
def fixture_run(trained, first_there):
    """A run of a model with a window and a memory."""
    return trained(mixer=first_there({"mixer": "macchiato", "latents": 8, "window": 9}, {"mixer": "gla"}))
