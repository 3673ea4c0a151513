"""Waiting for what another process does."""

import time


def wait_until(what, seconds=300):
    """Until `what()` holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
