"""Several processes of `python -m cortado`, like torchrun's; most are forks of one that has loaded torch."""

import contextlib
import json
import os
import socket
import subprocess
import sys

import preloaded
import pytest

CONFIG = {"name": "small", "dim": 32, "heads": 4, "layers": 2, "mixer": {"mixer": "latte", "latents": 8}, "positions": "rotary",
          "context": 64, "feed_forward": {"type": "swiglu", "dim": 48},
          "training": {"batch": 6, "context": 32, "steps": 12, "warmup": 2, "evaluate_every": 6, "log_every": 1, "tokenizer": "char",
                       "dtype": "float32"}}  # fmt: skip


# Small sizes: with the defaults a short text would not use all parts of a mechanism.
SETTINGS = {"latte": {"latents": 8}, "macchiato": {"latents": 8, "window": 9}, "sliding_window": {"window": 9}, "lola": {"chunk": 8, "cache": 4},
            "blurry_window": {"slots": 9, "period": 18}, "lolcats": {"window": 8}, "longformer": {"window": 5}, "luna": {"latents": 5},
            "mega": {"chunk": 16}}  # fmt: skip


def free_port():
    with contextlib.closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


class Ranks:
    """Running processes and their output."""

    def __init__(self, loaded, variables, count, words, port=None, of_rank=None, fresh=False):
        port = port or free_port()
        self.processes = []
        for rank in range(count):
            more = (of_rank or {}).get(rank, {})
            environment = {**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CORTADO_TIMEOUT": "60",
                           **more.get("environment", {})}  # fmt: skip
            given = [*map(str, words), *map(str, more.get("words", []))]
            before = more.get("before")
            process = None if fresh or before else loaded.start(given, env=environment)
            self.processes.append(process or subprocess.Popen(
                [sys.executable, "-m", "cortado", *given], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                preexec_fn=before))  # fmt: skip

    def end(self, timeout=120):
        """Waits; returns exit codes, stdout, and the lines on stderr."""
        told = [process.communicate(timeout=timeout) for process in self.processes]
        return [process.returncode for process in self.processes], [out for out, _ in told], [err for _, err in told]


@pytest.fixture(scope="session", name="variables")
def fixture_variables(root, build):
    return {"PYTHONPATH": str(root / "python"), "CORTADO_BUILD": str(build), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session", name="loaded")
def fixture_loaded(program, variables):
    with preloaded.Preloaded(program, ranks=True, **variables) as it:
        yield it


@pytest.fixture(name="ranks")
def fixture_ranks(loaded, variables):
    """ranks(count, *words) starts processes and ends all of them with the test. `fresh`: not as forks."""
    started = []

    def start(count, *words, **options):
        started.append(Ranks(loaded, variables, count, words, **options))
        return started[-1]

    yield start
    for group in started:
        for process in group.processes:
            process.kill()


@pytest.fixture(name="small")
def fixture_small(tmp_path, root):
    """small(changes...) writes a config with a text.txt beside it; returns its path."""
    (tmp_path / "text.txt").write_text((root / "data/tinyshakespeare.txt").read_text()[:20000])

    def write(training=None, name="config.json", **changes):
        config = {**CONFIG, **changes, "training": {**CONFIG["training"], "data": str(tmp_path / "text.txt"), **(training or {})}}
        (tmp_path / name).write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        return tmp_path / name

    return write


@pytest.fixture
def layers_of_all(cortado):
    """One layer of every causal mechanism, as changes of a config."""
    names = [it["name"] for it in json.loads(cortado("mechanisms", "--json").stdout) if it["causal"]]
    assert len(names) > 25
    return {"layers": [{"mixer": {"mixer": name, **SETTINGS.get(name, {})}} for name in names], "mixer": None}


@pytest.fixture(name="lines")
def fixture_lines():
    """lines(run) returns metrics.jsonl without times."""

    def read(run):
        found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if "second" not in key and not key.endswith("_bytes")} for line in found]

    return read
