"""A server that tests of the page kill and start again."""

import os
import signal
import socket
import subprocess
import urllib.request

from until import wait_until


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


class Server:
    """`cortado serve` at a port that it keeps when it is restarted."""

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
        wait_until(lambda: self.is_there() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def is_there(self):
        try:
            return urllib.request.urlopen(self.address + "/health").read()
        except OSError:
            return False

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
