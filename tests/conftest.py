"""What the Python tests share: where the program and the operators' library are."""

import json
import os
import pathlib

import preloaded
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build" / "release"))
CORTADO = BUILD / "bin" / "cortado"
OPS = BUILD / "lib" / "libcortado_ops.so"
# Two runs that must be equal may not have the clock decide which library multiplies, as it does on a busy machine.
os.environ.setdefault("CORTADO_MATMUL", "blas")


def mechanisms():
    """Names of the mechanisms whose folders are there."""
    paths = (ROOT / "src" / "cortado" / "mechanisms").glob("*/examples.json")
    return {name for path in paths for name in json.loads(path.read_text())}


def mixers_of(value):
    """Names of the mixers in a test's parameter, at any depth of a config."""
    if isinstance(value, dict):
        inner = set().union(*map(mixers_of, value.values()))
        return inner | {value["mixer"]} if isinstance(value.get("mixer"), str) else inner
    return set().union(*map(mixers_of, value)) if isinstance(value, (list, tuple)) else set()


def needs(item):
    """Names of the mechanisms that a test says it uses: by its marks, and by the mixers of its parameters."""
    marked = {name for mark in item.iter_markers("mechanism") for name in mark.args}
    return marked | mixers_of(list(item.callspec.params.values()) if hasattr(item, "callspec") else [])


def pytest_configure(config):
    text = "mechanism(*names): a test of something else that uses these mechanisms; left out where one is deleted"
    config.addinivalue_line("markers", text)


def pytest_collection_modifyitems(config, items):
    there = mechanisms()
    gone = [item for item in items if needs(item) - there]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


@pytest.fixture(scope="session", name="mechanisms")
def fixture_mechanisms():
    """Names of the mechanisms that there are."""
    return mechanisms()


@pytest.fixture(scope="session")
def first_there(mechanisms):
    """first_there(mixer, ...): the first of these that was not deleted, for tests that run on any."""
    return lambda *mixers: next(it for it in mixers if it["mixer"] in mechanisms)


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
    with preloaded.Preloaded(CORTADO) as program:
        yield program.run


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
