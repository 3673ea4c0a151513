"""tests/preloaded.py: calls are forks in every test, unless their environment differs."""

import signal

import preloaded
import pytest


@pytest.fixture(name="loaded", scope="module")
def fixture_loaded(program):
    with preloaded.Preloaded(program, MKL_CBWR="COMPATIBLE") as it:
        yield it


@pytest.mark.parametrize("test", [1, 2])
def test_every_test_forks(loaded, test, monkeypatch):
    monkeypatch.setenv("CORTADO_MATMUL", "blas")
    process = loaded.start(["--version"])
    assert process is not None and process.communicate(60)[0].startswith("cortado ") and process.returncode == 0


def test_another_environment_is_started(loaded, monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    assert loaded.start(["--version"], env=dict(preloaded.os.environ)) is None
    assert loaded.run("--version", env=dict(preloaded.os.environ)).stdout.startswith("cortado ")


def test_several_at_once_end_as_they_are_told_to(loaded):
    waiting = [loaded.start(["serve", "/nowhere"]), loaded.start(["mechanisms", "--json"])]
    assert waiting[1].wait(60) == 0 and waiting[0].wait(60) == 2
    assert "/nowhere" in waiting[0].communicate()[1] and '"latte"' in waiting[1].communicate()[0]


def test_one_that_is_killed(loaded, root, tmp_path):
    process = loaded.start(["train", root / "configs/macchiato-demo.json", "--data", root / "data/tinyshakespeare.txt", "--out", tmp_path / "run"])
    assert process.poll() is None
    process.kill()
    assert process.wait(60) == -signal.SIGKILL == process.poll()
