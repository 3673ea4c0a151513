"""The program with its libraries loaded once: a process that has loaded them forks for each call. libtorch takes 0.3 s of a
processor to load, and the tests call the program a thousand times."""

import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

LONGEST = 100_000  # bytes of a call's words and environment


def while_loading(environment):
    """What libraries may read when they are loaded; ours read CORTADO_* later."""
    return {name: value for name, value in environment.items() if not name.startswith("CORTADO_")}


class Preloaded:
    """Calls of a program, `bin/cortado` of a build folder."""

    def __init__(self, program):
        self.program = pathlib.Path(program)
        self.there, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        library = self.program.parent.parent / "lib" / "libcortado_commands.so"
        command = [sys.executable, "-E", "-S", __file__, library, str(theirs.fileno())]
        self.environment = while_loading(os.environ)
        environment = {"GOMP_SPINCOUNT": "1000", **os.environ}  # as program.cpp has it
        self.process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.there.close()
        self.process.wait(60)

    def run(self, *words, timeout=300, cwd=None, env=None, **options):
        """As subprocess.run, with text streams that are kept; takes `input`. Starts the program where a fork would not do."""
        words = [str(word) for word in words]
        env = dict(os.environ) if env is None else env
        told = {"CORTADO_PROGRAM": self.program, **env}  # a sweep starts it again
        call = json.dumps({"words": words, "folder": cwd or pathlib.Path.cwd(), "environment": told}, default=str).encode()
        fits = len(call) <= LONGEST and while_loading(env) == self.environment and set(options) <= {"input"}
        if not fits or words[:1] == ["doctor"]:  # which says where the program is
            if "input" not in options:
                options.setdefault("stdin", subprocess.DEVNULL)
            return subprocess.run([str(self.program), *words], timeout=timeout, cwd=cwd, env=env, capture_output=True, text=True,
                                  check=False, **options)  # fmt: skip
        with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
            given.write(options.get("input", ""))
            given.seek(0)
            code = self.fork(call, [given.fileno(), out.fileno(), errors.fileno()], timeout)
            out.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess([str(self.program), *words], code, out.read(), errors.read())

    def fork(self, call, streams, timeout):
        """The exit code of one call."""
        self.there.settimeout(None)
        socket.send_fds(self.there, [call], streams)
        child = int(self.there.recv(64))
        self.there.settimeout(timeout)
        try:
            return int(self.there.recv(64))
        except TimeoutError as error:
            os.kill(child, signal.SIGKILL)
            self.there.settimeout(None)
            self.there.recv(64)
            raise subprocess.TimeoutExpired(json.loads(call)["words"], timeout) from error


# --- The process that has loaded them. ---


def become(main, call, streams):
    """The program, in a child; does not return."""
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python takes these for itself
        signal.signal(number, signal.SIG_DFL)
    for stream, descriptor in enumerate(streams):
        os.dup2(descriptor, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    words = [word.encode() for word in ["cortado", *call["words"]]]
    code = main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
    ctypes.CDLL(None).fflush(None)
    os._exit(code)  # as program.cpp does


def serve(library, there):
    main = ctypes.CDLL(library).cortado_main
    while True:
        call, streams, _, _ = socket.recv_fds(there, LONGEST, 3)
        if not call:
            return
        if (child := os.fork()) == 0:
            become(main, json.loads(call), streams)
        for descriptor in streams:
            os.close(descriptor)
        there.send(str(child).encode())
        there.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
