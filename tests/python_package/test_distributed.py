"""DDP and FSDP2: two processes with half of the rows each train as one does."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("two_processes.py")


@pytest.mark.parametrize(("way", "mixer"), [
    pytest.param("ddp", "macchiato", marks=pytest.mark.mechanism("macchiato")),
    pytest.param("fsdp2", "macchiato", marks=[pytest.mark.mechanism("macchiato"), pytest.mark.slow]),
    pytest.param("fsdp2", "mamba2", marks=pytest.mark.slow),
])  # fmt: skip
def test_two_processes_train_as_one(root, tmp_path, way, mixer):
    environment = {**os.environ, "PYTHONPATH": str(root / "python"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT)]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "store"), way, mixer], env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(2)]  # fmt: skip
    try:
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], told[0][-2000:] + told[1][-2000:]
