"""Shared by the tests of `cortado serve`: real servers, stopped as users stop them."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import urllib.request

import pytest


class Server:
    """One `cortado serve` at its own address."""

    def __init__(self, program, words, log):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        threads = [] if "--threads" in words else ["--threads", "1"]
        command = [str(program), "serve", *map(str, words), "--port", "0", *threads]
        self.log = log
        self.asked_to_end = False
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=open(log, "w"), text=True, env=environment
        )
        line = self.process.stdout.readline()
        assert line.startswith("listening at http://"), pathlib.Path(log).read_text()
        self.address = line.split()[-1]
        self.port = int(self.address.rsplit(":", 1)[1])

    def get(self, path, headers=None):
        with urllib.request.urlopen(urllib.request.Request(self.address + path, headers=headers or {})) as reply:
            return reply.read().decode()

    def post(self, path, body, headers=None):
        """Returns the reply's status and JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, headers=headers or {})
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def metric(self, name):
        for line in self.get("/metrics").splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return 0.0

    def is_ending(self):
        """Returns whether the signal has arrived: after it no request is accepted."""
        try:
            self.get("/health")
        except urllib.error.HTTPError as error:
            return error.code == 503
        except OSError:
            return True  # it may have ended already
        return False

    def ask_to_end(self):
        """Sends one signal: after a second one the server would not finish its answers."""
        if not self.asked_to_end and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.asked_to_end = True

    def end(self):
        self.ask_to_end()
        return self.process.wait(timeout=300)


@pytest.fixture(scope="session", name="start_server")
def fixture_start_server(program, tmp_path_factory):
    """start_server(*words) is a context in which such a server runs; it must exit with 0 at the end."""

    @contextlib.contextmanager
    def start(*words):
        server = Server(program, words, tmp_path_factory.mktemp("serve") / "log")
        try:
            yield server
            assert server.end() == 0, pathlib.Path(server.log).read_text()
        finally:
            server.process.kill()

    return start


@pytest.fixture(scope="session", name="tiny")
def fixture_tiny(once, program, root, first_there):
    """A run over bytes, of two layers, trained for a few steps."""
    config = {
        "dim": 64, "heads": 4, "layers": 2, "mixer": first_there({"mixer": "macchiato", "window": 16, "latents": 8}, {"mixer": "gla"}),
        "positions": "rotary", "norm": "rms", "context": 64,
        "training": {"steps": 20, "batch": 4, "warmup": 2, "evaluate_every": 20, "tokenizer": "byte"},
    }  # fmt: skip

    def train(run):
        path = run.with_name("tiny.json")
        path.write_text(json.dumps(config))
        subprocess.run([program, "train", path, "--out", run, "--quiet"], check=True, cwd=root)

    return once("tiny", train)


@pytest.fixture(scope="session", name="talker")
def fixture_talker(smollm2):
    """A model that can chat."""
    return smollm2
