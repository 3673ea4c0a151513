"""A test with an event loop of its own in a process whose first thread may have one: that of the page's browser."""

import concurrent.futures
import functools


def in_own_thread(test):
    @functools.wraps(test)
    def run(*arguments, **named):
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            return threads.submit(test, *arguments, **named).result()

    return run
