"""Runs a test with an event loop in its own thread: the first thread may have the page's browser's loop."""

import concurrent.futures
import functools


def in_own_thread(test):
    @functools.wraps(test)
    def run(*arguments, **named):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            return threads.submit(test, *arguments, **named).result()

    return run
