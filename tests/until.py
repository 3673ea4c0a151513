"""Waiting for what another process does."""

import time


def wait_until(what, process=None, seconds=300):
    """Until `what()` holds. Fails at once if `process`, which is to bring it about, has ended."""
    end = time.monotonic() + seconds
    while not what():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
