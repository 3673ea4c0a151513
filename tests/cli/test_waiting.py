"""How long waiting threads spin is set before libgomp reads it."""

import os

import pytest


@pytest.mark.parametrize(
    "said, spins",
    [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_threads_spin_shortly_unless_somebody_says_otherwise(cortado, said, spins):
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    # libgomp prints its settings when it is loaded.
    done = cortado("--version", env=environment | said | {"OMP_DISPLAY_ENV": "verbose"})
    assert done.returncode == 0
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
