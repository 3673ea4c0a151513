"""A server that tests of the page kill and start again."""

import os
import signal
import socket
import subprocess
import time
import urllib.request


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


class Server:
    """`cortado serve` at a port that stays when it is started again."""

    def __init__(self, program, words, folder):
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.command = [str(program), "serve", *map(str, words), "--port", str(self.port), "--threads", "1"]
        self.log = folder / "log"
        self.process = None

    def start(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        log = self.log.open("a")
        self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)
        for _ in range(1800):
            try:
                return urllib.request.urlopen(self.address + "/health").read()
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
