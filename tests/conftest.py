"""What the Python tests share: where the program and the operators' library are."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build" / "release"))
CORTADO = BUILD / "bin" / "cortado"
OPS = BUILD / "lib" / "libcortado_ops.so"


@pytest.fixture(scope="session")
def root():
    """The repository's folder."""
    return ROOT


@pytest.fixture(scope="session")
def build():
    """The build folder under test."""
    return BUILD


@pytest.fixture(scope="session")
def program():
    """The cortado executable."""
    return CORTADO


@pytest.fixture(scope="session")
def ops():
    """torch.ops.cortado, with the library loaded."""
    import torch

    torch.ops.load_library(str(OPS))
    return torch.ops.cortado


@pytest.fixture(scope="session")
def cortado():
    """Runs the program: cortado("generate", run, "--n-tokens", 5, input="text") -> CompletedProcess with text streams."""

    def run(*arguments, **options):
        options.setdefault("timeout", 300)
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        command = [str(CORTADO), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    return run


@pytest.fixture(scope="session")
def refused(cortado):
    """refused("eval", ..., code=2): the program must end with that code and one readable line; returns the line."""

    def run(*arguments, code=2, **options):
        done = cortado(*arguments, **options)
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        assert done.returncode == code, f"exit code {done.returncode}: {done.stderr}"
        assert len(lines) == 1, f"expected one line, got:\n{done.stderr}"
        return lines[0]

    return run
