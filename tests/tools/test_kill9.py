"""scripts/kill9.py: it finds checkpoints on a machine of any speed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # one training is killed, one is not


@pytest.mark.mechanism("macchiato")
def test_killed_at_steps_that_were_seen(program, root):
    command = [sys.executable, root / "scripts/kill9.py", "--cortado", program, "--kills", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    first, *others, last = done.stdout.splitlines()
    assert first == "kill  1: before the first checkpoint" and last.startswith("4 kills: readable each time")
    steps = [int(line.rpartition(" ")[2]) for line in others]
    assert len(steps) == 3 and steps[0] > 0 and steps == sorted(set(steps))
