"""scripts/test.sh, with fake compilers, ctest and pytest that print their arguments."""

import os
import pathlib
import signal
import subprocess

import pytest
from until import wait_until

PROGRAMS = {
    "cmake": 'echo "compiling"; exit ${COMPILED:-0}',
    "ctest": 'echo "Test project here"; echo "ctest $*"; [ -z "$WAIT" ] || { echo $$ >"$WAIT"; exec sleep 600; }; exit ${CTEST:-0}',
    "python": 'echo "python $*"; [ -z "$WAIT" ] || { while [ ! -s "$WAIT" ]; do sleep 0.05; done; echo waiting; exec sleep 600; }; '
    "exit ${PYTEST:-0}",
}


@pytest.fixture(name="command")
def fixture_command(root, tmp_path):
    """command(which) -> the words of a call and its environment."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    return lambda which: ([root / "scripts/test.sh", tmp_path, tmp_path / "python", "2", which], environment)


@pytest.fixture(name="run")
def fixture_run(command):
    def run(which="quick", **codes):
        words, environment = command(which)
        return subprocess.run(words, env={**environment, **codes}, capture_output=True, text=True, check=False)

    return run


def test_quick_leaves_out_what_is_slow_and_all_does_not(run):
    quick, every = run("quick"), run("all")
    assert (quick.returncode, every.returncode) == (0, 0)
    assert "-m not slow tests\n" in quick.stdout and "--label-exclude slow\n" in quick.stdout
    assert "not slow" not in every.stdout and "--label-exclude" not in every.stdout


@pytest.mark.parametrize(
    "codes, says",
    [
        ({"CTEST": "8"}, "FAILED: C++"),
        ({"PYTEST": "1"}, "FAILED: Python"),
        ({"CTEST": "8", "PYTEST": "1"}, "FAILED: C++ Python"),
        ({"COMPILED": "1"}, "FAILED: C++"),
    ],
)
def test_it_fails_when_either_fails_and_both_are_shown(run, codes, says):
    done = run(**codes)
    assert done.returncode == 1 and done.stderr.endswith(f"[test] {says}\n")
    assert "python -m pytest" in done.stdout and ("compiling" if "COMPILED" in codes else "ctest --test-dir") in done.stdout


def test_ctrl_c_stops_both(command, tmp_path):
    words, environment = command("all")
    words = ["env", "--default-signal=INT", *words]  # a shell's background jobs ignore it, and so would a script
    started = tmp_path / "started"
    with subprocess.Popen(words, env={**environment, "WAIT": str(started)}, stdout=subprocess.PIPE, text=True, start_new_session=True) as it:
        while "waiting" not in it.stdout.readline():
            pass
        os.killpg(it.pid, signal.SIGINT)  # what a terminal sends
        it.stdout.read()
        assert it.wait() == 130
    wait_until(lambda: has_ended(started.read_text().strip()))


def has_ended(process):
    """Also if nobody has asked for how yet."""
    try:
        return pathlib.Path(f"/proc/{process}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True
