"""The program with its libraries loaded once: a process that has loaded them forks for each call. libtorch takes 0.3 s of a
processor to load, and the tests call the program a thousand times."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONGEST = 100_000  # bytes of a call's arguments and variables


# No library reads these while loading: ours read CORTADO_* later, and torch reads its rank on joining a group.
# PYTEST_CURRENT_TEST differs in every test.
NOT_WHILE_LOADING = re.compile("CORTADO_.*|PYTEST_.*|(LOCAL_)?RANK|WORLD_SIZE|MASTER_(ADDR|PORT)")


def while_loading(environment):
    """Returns the variables that libraries may read on loading."""
    return {name: value for name, value in environment.items() if not NOT_WHILE_LOADING.fullmatch(name)}


def library_of(program):
    return pathlib.Path(program).parent.parent / "lib" / "libcortado_commands.so"


def how_to_build(path):
    """One line."""
    return f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path} is missing: run make build"


class Process:
    """A running call, like subprocess.Popen with text streams."""

    def __init__(self, words, replies, streams):
        self.args, self.replies, self.streams = words, replies, streams
        self.pid, self.returncode = int(replies.recv(64)), None

    def wait(self, timeout=None):
        if self.returncode is None:
            self.replies.settimeout(timeout)
            try:
                self.returncode = int(self.replies.recv(64))
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired(self.args, timeout) from error
            self.replies.close()
        return self.returncode

    def poll(self):
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and its parent was first to notice
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout=None):
        """Waits for the end; returns the standard output and the standard error."""
        self.wait(timeout)
        _, *written = self.streams
        for stream in written:
            stream.seek(0)
        told = tuple(stream.read() for stream in written)
        for stream in self.streams:
            stream.close()
        return told


class Preloaded:
    """Calls a program, `bin/cortado` of a build folder, with these variables. `ranks`: as one of several processes,
    `python -m cortado`."""

    def __init__(self, program, ranks=False, **variables):
        self.program, self.variables = pathlib.Path(program), variables
        library = library_of(program)
        for path in (self.program, library):
            if not path.exists():
                raise FileNotFoundError(how_to_build(path))
        self.there, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        flags = [] if ranks else ["-E", "-S"]
        command = [sys.executable, *flags, __file__, "ranks" if ranks else library, str(theirs.fileno())]
        self.environment = while_loading(os.environ | variables)
        environment = {"GOMP_SPINCOUNT": "1000", **os.environ, **variables}  # as in program.cpp
        self.process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.there.close()
        self.process.wait(60)

    def run(self, *words, timeout=300, cwd=None, env=None, **options):
        """Like subprocess.run with captured text streams and `input`. Starts the program where a fork is not enough."""
        words = [str(word) for word in words]
        fits = set(options) <= {"input"} and words[:1] != ["doctor"]  # which says where the program is
        process = self.start(words, cwd, env, options.get("input", "")) if fits else None
        if not process:
            if "input" not in options:
                options.setdefault("stdin", subprocess.DEVNULL)
            return subprocess.run([str(self.program), *words], timeout=timeout, cwd=cwd, env=env, capture_output=True, text=True,
                                  check=False, **options)  # fmt: skip
        try:
            out, errors = process.communicate(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess([str(self.program), *words], process.returncode, out, errors)

    def start(self, words, cwd=None, env=None, given=""):
        """Returns a Process, or None where a fork is not enough."""
        env = os.environ | self.variables if env is None else env
        told = {"CORTADO_PROGRAM": self.program, **env}  # a sweep starts it again
        call = json.dumps({"words": words, "folder": cwd or pathlib.Path.cwd(), "environment": told}, default=str).encode()
        if len(call) > LONGEST or while_loading(env) != self.environment:
            return None
        streams = [tempfile.TemporaryFile("w+") for _ in range(3)]
        streams[0].write(given)
        streams[0].seek(0)
        replies, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self.there, [call], [*(stream.fileno() for stream in streams), theirs.fileno()])
        return Process(words, replies, streams)


# --- The process that loads the libraries. ---


def of_library(path):
    """Returns the program as a function."""
    main = ctypes.CDLL(path).cortado_main

    def call(words):
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # Python takes these for itself
            signal.signal(number, signal.SIG_DFL)
        words = [word.encode() for word in ["cortado", *words]]
        return main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))

    return call


def of_ranks():
    """Returns `python -m cortado`, as one of several processes, as a function."""
    import torch.distributed  # noqa: F401  it takes seconds

    import cortado
    from cortado import _ranks

    ctypes.CDLL(str(library_of(cortado.program())))
    return lambda words: _ranks.run([str(cortado.program()), *words])


def become(main, call, streams):
    """Runs the program in a child; does not return."""
    for stream, descriptor in enumerate(streams):
        os.dup2(descriptor, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    code = main(call["words"])
    ctypes.CDLL(None).fflush(None)
    os._exit(code)  # as program.cpp does


def serve(main, there):
    """Forks for each call, and sends back the child's number and, at its end, its exit code."""
    events, running = select.poll(), {}
    events.register(there, select.POLLIN)
    while True:
        for ready, _ in events.poll():
            if ready != there.fileno():
                child, replies = running.pop(ready)
                events.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with replies, contextlib.suppress(BrokenPipeError):  # the caller may be gone
                    replies.send(str(code).encode())
                continue
            call, streams, _, _ = socket.recv_fds(there, LONGEST, 4)
            if not call:
                return
            replies = socket.socket(fileno=streams.pop())
            if (child := os.fork()) == 0:
                become(main, json.loads(call), streams)
            for descriptor in streams:
                os.close(descriptor)
            replies.send(str(child).encode())
            events.register(end := os.pidfd_open(child), select.POLLIN)
            running[end] = child, replies


if __name__ == "__main__":
    serve(of_ranks() if sys.argv[1] == "ranks" else of_library(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
