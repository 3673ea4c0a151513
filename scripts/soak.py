#!/usr/bin/env python3
"""Keeps `cortado serve` busy with 32 well- and ill-behaved clients, and checks that they leave nothing behind.

It starts the server itself, on 127.0.0.1 with a byte model trained for a second. The clients take turns at asking for whole
answers, streams and conversations, hanging up in the middle, leaving connections half open, reading slowly or not at all,
and sending bad JSON, oversized bodies, texts of megabytes (some are refused, some answered) and wrong keys. Then every
finished answer is requested again, alone. The exit code is 1 after a crash; a good request without a good answer; an answer
that differs when requested alone; a row that is not freed (/metrics); or memory (VmRSS) that has grown by more than 2 %
between the first and the last quarter of the second half.

Examples:
    scripts/soak.py                                   # ten minutes
    scripts/soak.py --minutes 3 --seed 2 --json
    scripts/soak.py --cortado /usr/local/bin/cortado --clients 64
"""

import argparse
import collections
import json
import pathlib
import shlex
import statistics
import tempfile
import threading
import time

from serve_lab import PROGRAM, Server, fail, show, train
from soak_clients import BODY_LIMIT, PROMPT_LIMIT, Client, texts_of_whole

LIMITS = f"--max-rows 8 --max-waiting 40 --max-body {BODY_LIMIT} --max-prompt {PROMPT_LIMIT} --max-answer 2000"
LIMITS += " --cache-bytes 8000000 --store-bytes 2000000 --max-connections 96"
LOAD = 15  # seconds of load before the answers are requested again
WARM_UP = 0.5  # share of the time in which caches fill
GROWTH = 0.02  # largest growth of memory
SHORTEST = 0.5  # minutes


class Soak:
    def __init__(self, options, server):
        self.options, self.server = options, server
        self.lock = threading.Lock()
        self.counts, self.problems = collections.Counter(), collections.Counter()
        self.finished = []  # (path, body, texts by choice) of this cycle
        self.replayed = 0
        self.samples = []  # (seconds since the beginning, KiB), without clients
        self.busiest = 0  # KiB
        self.over = threading.Event()
        self.start = time.monotonic()

    def seconds(self):
        return time.monotonic() - self.start

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def wrong(self, what):
        with self.lock:
            self.problems[what[:300]] += 1

    def tell(self, what):
        total, found = sum(self.counts.values()), sum(self.problems.values())
        show(
            f"soak: {self.seconds():4.0f} s, {what}, {total:,} requests, {self.replayed:,} replayed, "
            f"{self.server.resident_kib():,} KiB, {found} wrong"
        )

    def load(self, cycle, seconds):
        end = time.monotonic() + seconds
        clients = [Client(self, number, cycle, end) for number in range(self.options.clients)]
        for client in clients:
            client.start()
        while any(client.is_alive() for client in clients) and self.server.alive():
            time.sleep(0.5)
            self.busiest = max(self.busiest, self.server.resident_kib())
            if int(2 * time.monotonic()) % 10 == 0:
                self.tell("load")
        self.over.set() if not self.server.alive() else None
        for client in clients:
            client.join(5)

    def replay(self, until):
        """Requests every answer again, alone. Those not reached in time are skipped and counted."""
        finished, self.finished = self.finished, []
        for number, (path, body, texts) in enumerate(finished):
            if time.monotonic() > until:
                self.counts["not replayed"] += len(finished) - number
                return
            status, data = self.server.call(path, body)
            again = texts_of_whole(data) if status == 200 else f"status {status}"
            if again != texts:
                self.wrong(
                    f"another answer when asked alone: {json.dumps(body)[:120]}: {texts!r:.80} and then {again!r:.80}"
                )
            self.replayed += 1
            if number % 500 == 499:
                self.tell("replay")

    def cycle(self, number, end):
        self.load(number, min(LOAD, max(1.0, end - time.monotonic())))
        if self.server.died(0.2):
            self.wrong(f"a crash, exit code {self.server.process.poll()}: {self.server.last_words()}")
            return
        if held := self.server.rows_left():
            self.wrong(f"rows that stay behind: {held}")
        self.sample()
        self.replay(end + 60)
        self.sample()

    def sample(self):
        time.sleep(1)  # the server returns free memory half a second after the last answer
        self.samples.append((self.seconds(), self.server.resident_kib()))

    def run(self):
        end = self.start + 60 * self.options.minutes
        number = 0
        while time.monotonic() < end and not self.over.is_set():
            try:
                self.cycle(number, end)
            except (OSError, ValueError) as error:
                self.wrong(f"the server gave no answer to a lone client: {error}")
                self.over.set()
            number += 1
            self.tell(f"cycle {number}")
        show("", True)

    def memory(self):
        """Returns the KiB in the first quarter after the warm-up, and in the last quarter."""
        whole = self.samples[-1][0]
        warm = [sample for sample in self.samples if sample[0] >= WARM_UP * whole]
        quarter = max(1, len(warm) // 4)
        return statistics.median(k for _, k in warm[:quarter]), statistics.median(k for _, k in warm[-quarter:])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cortado", type=pathlib.Path, default=PROGRAM, help="the program")
    parser.add_argument("--minutes", type=float, default=10, help="default 10, at least 0.5")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", default="", metavar="OPTIONS", help="more options for the server")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def report(soak, first, last, metrics):
    cached = metrics.get("cortado_cached_tokens_total", 0) / max(1, metrics.get("cortado_prompt_tokens_total", 1))
    result = {
        "seconds": round(soak.seconds()),
        "seed": soak.options.seed,
        "requests": dict(sorted(soak.counts.items())),
        "replayed": soak.replayed,
        "cached": round(cached, 3),
        "resident_kib": {
            "warm": first,
            "end": last,
            "busiest": soak.busiest,
            "growth": round(last / first - 1, 4) if first else None,
        },
        "samples": [(round(seconds), kib) for seconds, kib in soak.samples],
        "wrong": soak.problems,
    }
    if soak.options.json:
        print(json.dumps(result))
        return
    print("  ".join(f"{name} {number:,}" for name, number in result["requests"].items()))
    print(f"{soak.replayed:,} answers asked for again, alone; {100 * cached:.0f} % of the prompts' tokens were known")
    if first:
        print(
            f"resident: {first:,.0f} KiB after the warm-up, {last:,.0f} KiB at the end "
            f"({100 * (last / first - 1):+.1f} %), {soak.busiest:,} at most"
        )
    for what, number in soak.problems.most_common(20):
        print(f"WRONG, {number:,} times: {what}")


def main():
    options = arguments()
    if options.minutes < SHORTEST or options.clients < 1:
        fail(f"--minutes must be at least {SHORTEST}, --clients at least 1")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run = train(options.cortado, folder)
        server = Server(options.cortado, run, folder, *shlex.split(LIMITS), *shlex.split(options.server))
        soak = Soak(options, server)
        try:
            soak.run()
            metrics = server.metrics() if server.alive() else {}
        finally:
            crashed = not server.alive()
            code = server.stop()
        if code != 0 and not crashed:
            soak.wrong(f"the server ended with {code} after SIGTERM, expected 0: {server.last_words()}")
    first, last = soak.memory() if soak.samples else (0, 0)
    if last > (1 + GROWTH) * first:
        soak.wrong(f"memory grew from {first:,.0f} to {last:,.0f} KiB, by more than {100 * GROWTH:.0f} %")
    report(soak, first, last, metrics)
    if soak.problems:
        fail(f"{sum(soak.problems.values())} things were wrong in {soak.seconds():.0f} s")
    show(f"[soak] {soak.seconds():.0f} s: no crash, no row left, no answer mixed with another's, memory flat", True)


if __name__ == "__main__":
    main()
