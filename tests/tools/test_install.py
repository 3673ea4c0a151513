"""`cmake --install`, find_package(cortado) and the examples."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # it is installed, and examples are compiled


@pytest.fixture(name="run", scope="module")
def fixture_run():
    def run(*command, **options):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(name="prefix", scope="module")
def fixture_prefix(tmp_path_factory, run, build):
    path = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", build, "--prefix", path)
    return path


def test_examples_train_and_generate(tmp_path, run, prefix, root):
    run("cmake", "-S", root / "examples", "-B", tmp_path / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=")
    run("cmake", "--build", tmp_path / "build", "-j", os.cpu_count())
    text = tmp_path / "text.txt"
    text.write_text((prefix / "share/cortado/data/tinyshakespeare.txt").read_text()[:20000])
    output = run(tmp_path / "build/example_train", text, tmp_path / "run", 50)
    assert "step    50" in output
    output = run(tmp_path / "build/example_generate", tmp_path / "run", "ROMEO:", 20)
    assert output.count("ROMEO:") == 2
    # The installed program reads the same run.
    output = run(prefix / "bin/cortado", "generate", tmp_path / "run", "--prompt", "ROMEO:", "--n-tokens", 5)
    assert len(output) == 5


def test_python_trains_a_layer(run, prefix, root):
    library = next(prefix.glob("lib*/**/libcortado_ops.so"))
    output = run(sys.executable, root / "examples/train_layer.py", library, 100)
    losses = [float(line.split()[3]) for line in output.splitlines()]
    assert losses[-1] < losses[0]


def test_headers_are_installed_and_internals_are_not(prefix):
    assert (prefix / "include/cortado/generate/session.h").exists()
    assert not (prefix / "include/cortado/pch.h").exists()
    assert not (prefix / "include/cortado/cli").exists()
    assert list((prefix / "share/cortado/configs").glob("*.json"))
