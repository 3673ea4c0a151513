"""Without a build, all tests say so in one line."""

import os
import subprocess
import sys

import pytest


@pytest.fixture(name="without_build")
def fixture_without_build(root, tmp_path):
    """without_build(word, ...) runs Python with these words for an empty build folder."""

    def run(*words, **changes):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "CORTADO"))}
        done = subprocess.run([sys.executable, *map(str, words)], cwd=root, capture_output=True, text=True, check=False,
                              env=environment | {"CORTADO_BUILD": str(tmp_path)} | changes)  # fmt: skip
        return done.returncode, [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]

    return run


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["tests/cli/test_help.py"], "bin/cortado"),
        (["tests/cli/test_help.py", "-n", "2"], "bin/cortado"),
        (["tests/parity/test_taps.py"], "bin/cortado"),
        pytest.param(["tests/python", "tests/serve"], "bin/cortado", marks=pytest.mark.slow),
        (["tests/python/test_edges.py"], "lib/libcortado_ops.so"),
        pytest.param(["tests/cuda"], "lib/libcortado_ops.so", marks=pytest.mark.slow),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else None,
)
def test_one_line(without_build, tmp_path, words, file):
    code, lines = without_build("-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
    assert code != 0 and lines == [f"ERROR: {tmp_path / file} is missing: run make build"]


def test_a_path_of_the_repository_is_short(without_build, root):
    code, lines = without_build("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cli/test_help.py", CORTADO_BUILD=str(root / "build/none"))
    assert code != 0 and lines == ["ERROR: build/none/bin/cortado is missing: run make build"]


def test_the_process_that_loads_the_program_is_not_started(without_build, root):
    script = "import sys; sys.path.insert(0, 'tests'); import preloaded; preloaded.Preloaded(sys.argv[1])"
    code, lines = without_build("-c", script, root / "build/none/bin/cortado")
    assert code != 0 and lines[-1] == "FileNotFoundError: build/none/bin/cortado is missing: run make build"
