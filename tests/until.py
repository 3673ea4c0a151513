"""Waits for other processes."""

import time


def wait_until(what, process=None, seconds=300):
    """Waits until `what()` holds. Fails at once if `process`, which should cause it, has ended."""
    end = time.monotonic() + seconds
    while not what():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
