#!/usr/bin/env python3
"""Sends malformed requests to `cortado serve`, which it starts itself with a tiny model and small limits.

The requests have bad request lines, headers, chunks and lengths, binary data, and JSON that is changed in every way; each is a
function of the seed and its number. The exit code is 1 after a crash; a 5xx status, or a stream that ends with an error of the
server; a request that is neither answered nor closed in time; a body over --max-body that is accepted; a body that is read
as a request; an answer to a good request that differs from the one at the beginning; or a row that is not freed.

Examples:
    scripts/fuzz_serve.py                                     # 100,000 requests: some minutes
    scripts/fuzz_serve.py --count 5000 --seed 2 --json
    scripts/fuzz_serve.py --only 1234                         # repeats this one and shows what is sent and received
    scripts/fuzz_serve.py --server="--log json"               # options for the server
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import pathlib
import re
import shlex
import socket
import tempfile
import time

from fuzz_cases import BODY_LIMIT, PATIENT, make_case
from serve_lab import PROGRAM, Server, fail, show, train

LIMITS = f"--max-rows 8 --max-waiting 64 --max-body {BODY_LIMIT} --max-answer 16 --max-prompt 512 --max-seconds 20"
LIMITS += " --cache-bytes 4000000 --max-connections 96 --prefill-tokens 512"
SILENCE = 0.2  # seconds without an answer after which the connection is half-closed
BLOCK = 500  # requests between two checks of the server
GOOD = {"prompt": "ROMEO:", "max_tokens": 16, "seed": 11, "temperature": 0.8}
MOST_CRASHES = 20  # after this many, stop


def exchange(port, case, seconds):
    """Returns the received bytes, and whether the connection ended in time."""
    end, received = time.monotonic() + seconds, b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as client:
        try:
            for number, part in enumerate(case.parts):
                if number:  # lets the server read the first part alone
                    time.sleep(0.05)
                client.sendall(part)
        except TimeoutError:
            return received, False
        except OSError:  # the server may close before it has read everything
            pass
        waiting = case.half_close  # only when no more bytes come: the server does not answer half-closed connections
        while True:
            client.settimeout((0.03 if received else SILENCE) if waiting else max(0.01, end - time.monotonic()))
            try:
                piece = client.recv(65536)
                if not piece:
                    return received, True
                received += piece
            except TimeoutError:
                if not waiting:
                    return received, False
                waiting = False
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_WR)
            except OSError:
                return received, True


def verdict(case, received, ended):
    """Returns the status (or how else the request ended), and the error or None."""
    statuses = re.findall(rb"HTTP/1\.[01] (\d{3}) [A-Z][\w' -]*\r\n", received)
    statuses = [each.decode() for each in statuses if each != b"100"]
    status = statuses[0] if statuses else "closed"
    if not ended:
        return "hang", "neither answered nor closed in time"
    if any(each.startswith("5") for each in statuses):
        return status, "a 5xx"
    if b'"type":"server_error"' in received:
        return status, "an error of the server's own in the middle of an answer"
    if case.refused and status.startswith("2"):
        return status, "a body over --max-body was taken"
    if len(statuses) > case.answers:
        return status, "a body was taken for a request of its own"
    return status, None


class Fuzz:
    def __init__(self, options, server):
        self.options, self.server = options, server
        self.counts = collections.defaultdict(collections.Counter)  # family -> status -> requests
        self.wrong = collections.defaultdict(list)  # what -> [(number, more)]
        self.crashes = 0
        self.good = self.good_answer()

    def good_answer(self):
        status, body = self.server.call("/v1/completions", GOOD)
        return json.loads(body)["choices"][0]["text"] if status == 200 else f"status {status}: {body!r}"

    def one(self, number):
        case = make_case(self.options.seed, number)
        try:
            return case, *verdict(case, *exchange(self.server.port, case, self.options.seconds))
        except OSError as error:
            return case, "none", f"no connection: {error.strerror or error}"

    def note(self, case, status, wrong):
        self.counts[case.family][status] += 1
        if wrong:
            self.wrong[wrong].append((case.number, f"{case.family}, {status}"))

    def block(self, numbers, workers):
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            results = list(pool.map(self.one, numbers))
        if not self.server.died(0.1):
            for result in results:
                self.note(*result)
            self.look()
        else:
            self.find_crash(numbers)

    def find_crash(self, numbers):
        """Repeats these requests one by one to find the one that crashed the server."""
        found = False
        self.server.start()
        for number in numbers:
            result = self.one(number)
            if not self.answers():
                found = True
                self.crashed(number, result[0].family)
                continue
            self.note(*result)
        if not found:
            self.crashed(numbers[0], f"one of {len(numbers)} requests from this on, not again when each was sent alone")

    def answers(self):
        """Whether the server answers. A dying process still accepts connections for a moment."""
        try:
            return self.server.call("/health", timeout=10)[0] == 200
        except OSError:
            return not self.server.died()

    def crashed(self, number, family):
        code = self.server.process.poll()
        self.wrong["a crash"].append((number, f"{family}, exit code {code}: {self.server.last_words()}"))
        self.counts[family]["crash"] += 1
        self.crashes += 1
        if not self.server.alive():
            self.server.start()

    def look(self):
        """Checks that the answer to a good request has not changed."""
        try:
            now = self.good_answer()
        except OSError as error:
            now = f"no answer: {error}"
        if now != self.good:
            self.wrong["another answer to a good request"].append((-1, f"{now!r} instead of {self.good!r}"))

    def run(self):
        count = self.options.count
        patient = list(range(0, count, PATIENT))
        others = [n for n in range(count) if n % PATIENT]
        show(f"fuzz: {len(patient)} requests that leave it to the server to end them")
        done, start = 0, time.monotonic()
        blocks = [(patient, 64)] + [(others[i : i + BLOCK], self.options.clients) for i in range(0, len(others), BLOCK)]
        for numbers, workers in blocks:
            self.block(numbers, workers)
            done += len(numbers)
            seconds = time.monotonic() - start
            found = sum(map(len, self.wrong.values()))
            show(f"fuzz: {done:,} of {count:,} requests, {done / seconds:,.0f}/s, {found:,} findings", done == count)
            if self.crashes >= MOST_CRASHES:
                show(f"fuzz: {self.crashes} crashes, which is enough", True)
                break
        if held := self.server.rows_left():
            self.wrong["rows that stay behind"].append((-1, str(held)))
        return done, time.monotonic() - start


def report(fuzz, done, seconds, as_json):
    statuses = sorted({status for counts in fuzz.counts.values() for status in counts})
    if as_json:
        result = {
            "requests": done,
            "seconds": round(seconds, 1),
            "seed": fuzz.options.seed,
            "counts": fuzz.counts,
            "wrong": fuzz.wrong,
        }
        print(json.dumps(result | {"resident_kib": fuzz.server.resident_kib()}))
        return
    print(f"{'requests':16}" + "".join(f"{status:>9}" for status in statuses))
    total = collections.Counter()
    for family, counts in sorted(fuzz.counts.items()):
        print(f"{family:16}" + "".join(f"{counts[status]:>9,}" for status in statuses))
        total.update(counts)
    print(f"{'all':16}" + "".join(f"{total[status]:>9,}" for status in statuses))
    for what, cases in fuzz.wrong.items():
        print(f"WRONG, {len(cases):,} times: {what}")
        for number, more in cases[:5]:
            print(f"    {'--only ' + str(number) if number >= 0 else ''} {more}")


def show_one(server, options):
    case = make_case(options.seed, options.only)
    for part in case.parts:
        print(f"> {case.family}: {part[:3000]!r}{' ...' if len(part) > 3000 else ''}")
    received, ended = exchange(server.port, case, options.seconds)
    print(f"< {received[:3000]!r}")
    crash = f"a crash: {server.last_words()}" if server.died() else None
    wrong = crash or verdict(case, received, ended)[1]
    print(wrong or "nothing is wrong")
    return 1 if wrong else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cortado", type=pathlib.Path, default=PROGRAM, help="the program")
    parser.add_argument("--count", type=int, default=100_000, help="requests (default 100,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=16, help="clients at a time (default 16)")
    parser.add_argument(
        "--seconds",
        type=float,
        default=30,
        help="seconds until a request counts as hanging (default 30; the server reads for 10)",
    )
    parser.add_argument("--only", type=int, metavar="NUMBER", help="send only this request, and show it")
    parser.add_argument("--server", default="", metavar="OPTIONS", help="more options for the server")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    if options.count < 1 or options.clients < 1:
        fail("--count and --clients must be at least 1")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run = train(options.cortado, folder)
        server = Server(options.cortado, run, folder, *shlex.split(LIMITS), *shlex.split(options.server))
        try:
            if options.only is not None:
                raise SystemExit(show_one(server, options))
            fuzz = Fuzz(options, server)
            done, seconds = fuzz.run()
            report(fuzz, done, seconds, options.json)
        finally:
            code = server.stop()
        if code != 0:
            fail(f"the server ended with {code} after SIGTERM, expected 0")
    found = sum(map(len, fuzz.wrong.values()))
    if found:
        fail(f"{done:,} requests in {seconds:.0f} s: {found:,} findings")
    show(
        f"[fuzz_serve] {done:,} requests in {seconds:.0f} s: no crash, no 5xx, no hang, the same answer as at first",
        True,
    )


if __name__ == "__main__":
    main()
