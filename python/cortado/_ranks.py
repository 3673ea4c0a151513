"""Runs the program as one of torchrun's processes: creates the process group, which the program finds by its name."""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import sys
import time
import typing
import uuid

from cortado import _library

# Commands that several processes can run together.
TOGETHER = ("train", "linearize", "eval", "generate", "sweep")


class Store(typing.Protocol):
    """The methods of torch.distributed's store that are used here."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


def complain(message: str, code: int) -> int:
    if os.environ.get("RANK", "0") == "0":
        print(f"cortado: {message}", file=sys.stderr, flush=True)
    return code


def read(store: Store, key: str) -> str:
    return store.get(key).decode() if store.check([key]) else ""


def agree_on_attempt(store: Store, rank: int, size: int, timeout: float) -> str:
    """Returns a word that is shared by the processes of this attempt and differs from earlier attempts'. It is needed because
    torchrun keeps its store when it restarts processes: the addresses of dead processes are still in it, and reading one
    means waiting for a process that no longer exists.

    Each process writes a new word. Process 0 publishes all words after its own until each process has seen its word there
    and answered."""
    mine, deadline = uuid.uuid4().hex, time.monotonic() + timeout
    store.set(f"cortado/hello/{rank}", mine)
    while time.monotonic() < deadline:
        if rank == 0:
            others = [read(store, f"cortado/hello/{other}") for other in range(1, size)]
            store.set("cortado/welcome", json.dumps([mine, *others]))
            if all(read(store, f"cortado/answer/{other}") == mine for other in range(1, size)):
                return mine
        else:
            welcome = json.loads(read(store, "cortado/welcome") or "[]")
            if welcome[rank : rank + 1] == [mine]:
                store.set(f"cortado/answer/{rank}", welcome[0])
                return str(welcome[0])
        time.sleep(0.02)
    raise TimeoutError(f"not all of {size} have come within {timeout:.0f} s")


def join(timeout: float) -> str:
    """Creates the group of all processes: Gloo, and NCCL for tensors on GPUs. Returns its name, by which C++ finds it."""
    import torch
    import torch.distributed as dist

    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    limit = datetime.timedelta(seconds=timeout)
    store, rank, size = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
    own = dist.PrefixStore(agree_on_attempt(store, rank, size, timeout), store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=limit)
    assert dist.group.WORLD is not None
    return str(dist.group.WORLD.group_name)


def run(arguments: list[str]) -> int:
    """Runs the program in this process with these arguments, the first of which is its name. Returns its exit code."""
    asked = {"-h", "--help", "--version"} & set(arguments)
    if not asked and arguments[1:2] != [] and arguments[1] not in TOGETHER:
        return complain(f"[ranks] {arguments[1]} is for one process: leave torchrun out (together: {', '.join(TOGETHER)})", 2)
    given = os.environ.get("CORTADO_TIMEOUT", "600")
    try:
        timeout = float(given)
    except ValueError:
        timeout = 0.0
    if not 1 <= timeout <= 1e6:
        return complain(f"[ranks] CORTADO_TIMEOUT must be seconds from 1 to 1e6, got {given}", 2)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as in the program; libgomp reads it when torch is loaded
    _library.check_torch()
    if not asked:
        try:
            os.environ["CORTADO_PROCESS_GROUP"] = join(timeout)
        except Exception as error:  # of many types, with many lines
            return complain(f"[ranks] the processes do not find each other: {str(error).splitlines()[0]}", 1)
    else:
        import torch  # noqa: F401  loads the libraries that the program needs
    os.environ["CORTADO_PROGRAM"] = arguments[0]  # for processes that the program starts
    if (share := _library.root() / "share" / "cortado").is_dir():
        os.environ.setdefault("CORTADO_SHARE", str(share))  # the program would look beside the Python executable
    program = ctypes.CDLL(str(_library.root() / "lib" / "libcortado_commands.so"))
    words = (ctypes.c_char_p * (len(arguments) + 1))(*map(os.fsencode, arguments), None)
    code: int = program.cortado_main(len(arguments), words)
    sys.stdout.flush()
    # Skips exit handlers: they would wait for a group whose other processes are gone.
    os._exit(code)
