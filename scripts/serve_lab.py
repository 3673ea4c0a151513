"""Serves a small model on 127.0.0.1, for scripts/soak.py and scripts/fuzz_serve.py."""

import http.client
import json
import pathlib
import re
import select
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "cortado"
# Every byte is a token, so any text can be a prompt, and answers are often not UTF-8, which the server must handle.
CONFIG = {
    "name": "tiny",
    "dim": 32,
    "heads": 2,
    "layers": 2,
    "mixer": {"mixer": "macchiato", "latents": 8, "window": 16},
    "feed_forward": {"type": "mlp", "dim": 64},
    "training": {"batch": 4, "context": 64, "steps": 30, "warmup": 2, "evaluate_every": 30, "tokenizer": "byte"},
}
KEY = "a-key-of-this-run"
STARTED = "listening at http://127.0.0.1:"


def fail(message):
    sys.exit(f"[{pathlib.Path(sys.argv[0]).stem}] {message}")


def train(program, folder):
    """Trains a byte model for a second. Returns the run's folder."""
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "text.txt").write_text((ROOT / "data" / "tinyshakespeare.txt").read_text()[:20000])
    command = [str(program), "train", "config.json", "--data", "text.txt", "--out", "tiny", "--threads", "1", "--quiet"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        fail(f"{program} cannot be run: {error.strerror}")
    if done.returncode != 0:
        fail(f"the model could not be trained: {done.stderr.strip()}")
    teach_to_chat(folder / "tiny")
    return folder / "tiny"


def byte_letters():
    """Returns GPT-2's characters for bytes: the byte itself if it is visible, else one from 256 on."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(256 + hidden.index(byte)) for byte in range(256)]


def teach_to_chat(run):
    """Replaces the byte tokenizer by one with the same tokens and a chat template."""
    pieces = json.dumps({"tokens": byte_letters(), "merges": []}, ensure_ascii=False, separators=(",", ":"))
    checksum = 0xCBF29CE484222325
    for byte in pieces.encode():  # FNV-1a, as the program checks it
        checksum = (checksum ^ byte) * 0x100000001B3 % (1 << 64)
    special = {"begin": None, "end": 0, "unknown": None, "padding": None, "prefix": [], "suffix": [], "stops": [0]}
    special["chat"] = {"name": "chatml", "system": ""}
    settings = {"format": "cortado tokenizer", "version": 1, "kind": "bpe", "vocabulary": 256, "unknown": None}
    settings |= {"byte_fallback": False, "fuse_unknown": False, "ignore_merges": False, "normalizer": [], "added": []}
    # Splits texts into words, as the tokenizers of large models do; a large text has millions.
    words = {"type": "split", "pattern": {"regex": "\\s?\\S+|\\s"}, "behavior": "isolated", "invert": False}
    settings |= {"pre_tokenizer": [words, {"type": "bytes"}], "decoder": [{"type": "bytes"}], "special": special}
    (run / "tokenizer" / "pieces.json").write_text(pieces)
    (run / "tokenizer" / "tokenizer.json").write_text(json.dumps(settings | {"pieces_hash": f"{checksum:016x}"}))


class Server:
    """Runs `cortado serve` with a key at a free port. Its log is FOLDER/server.log."""

    def __init__(self, program, run, folder, *options):
        self.folder, self.log = folder, folder / "server.log"
        self.command = [str(program), "serve", str(run), "--host", "127.0.0.1", "--port", "0", "--threads", "1"]
        (folder / "keys").write_text(KEY + "\n")
        self.command += ["--api-key-file", str(folder / "keys"), *map(str, options)]
        self.start()

    def start(self):
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        ready = select.select([self.process.stdout], [], [], 60)[0]
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith(STARTED):
            self.process.kill()
            fail(f"the server did not start: {line}{self.last_words()}")
        self.port = int(line.removeprefix(STARTED))

    def alive(self):
        return self.process.poll() is None

    def died(self, patience=1.0):
        """Whether the server has ended. Waits a moment, because a crash takes time."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            return False
        return True

    def last_words(self):
        """Returns the last log lines that are not about requests."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return " / ".join(line for line in lines[-200:] if not re.match(r'\d{4}-\d\d-\d\dT|\{"time"', line))[-500:]

    def stop(self, patience=60):
        """Sends SIGTERM. Returns the exit code, or None if the server did not end."""
        self.process.terminate()
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def resident_kib(self):
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")), 0)

    def call(self, path, body=None, timeout=60):
        """Sends a well-formed request. Returns (status, bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {KEY}", "Connection": "close", "Content-Type": "application/json"}
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request("GET" if body is None else "POST", path, data, headers)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def metrics(self):
        """Returns {name with labels: number}."""
        lines = self.call("/metrics")[1].decode().splitlines()
        return {name: float(number) for name, number in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}

    def rows_left(self, patience=15):
        """Returns the rows that are not freed after `patience` seconds without clients; {} if all are."""
        end = time.monotonic() + patience
        while True:
            metrics = self.metrics()
            held = {name: metrics[f"cortado_{name}"] for name in ("writing", "reading", "waiting")}
            if not any(held.values()):
                return {}
            if time.monotonic() > end:
                return held
            time.sleep(0.2)


def show(line, done=False):
    """Shows progress: on a terminal in one line, elsewhere as separate lines."""
    at_terminal = sys.stderr.isatty()
    print(
        f"\r{line}\x1b[K" if at_terminal else line,
        end="" if at_terminal and not done else "\n",
        file=sys.stderr,
        flush=True,
    )
