"""Measures how fast stored conversations are resumed: from the server's memory, and from the disk after a restart.

    .venv/bin/python bench/serve/stored.py --memory macchiato                 # 100 in memory, 1,000 on disk
    .venv/bin/python bench/serve/stored.py --memory lola --in-memory 20 --on-disk 200
    .venv/bin/python bench/serve/stored.py --memory macchiato --options="--weights int8 --dtype bfloat16"
    .venv/bin/python bench/serve/stored.py --run build/bench/Granite-4.0-H-350M-int4 --words 3000 --on-disk 8 --clients 8

Conversations of /v1/responses with SmolLM2 (the file of bench/peers/smollm2.py), converted with the maps that lie in
data/smollm2: all begin with the same 2,000 tokens, and go on with a turn of their own, so that each has a state of its
own. What is measured is the time to the first token of another turn of a few tokens. Beside it the same of a
conversation that was written a moment ago, which is what reading the new tokens takes. Everything lies in a temporary
folder; --on-disk conversations of LoLA take 10 GB. With --run it is any run's model, which gets SmolLM2's tokenizer if
it has none (bench/peers/hybrids.py makes runs with random weights), and --clients resume at once after the restart.
"""

import argparse
import json
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "peers"))
from run import ROOT, Server, say
from smollm2 import imported, model_file

MEMORIES = {
    "macchiato": ("data/smollm2/macchiato.safetensors", ""),
    "lola": ("data/smollm2/lolcats.safetensors", "--memory lola --chunk 64 --cache 256"),
}
ASKED = 20  # conversations of each kind that are resumed


def call(address, body, path="/v1/responses"):
    request = urllib.request.Request(address + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def metric(address, name):
    with urllib.request.urlopen(address + "/metrics") as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
    return 0.0


def turn(address, previous, words):
    return call(address, {"input": words, "previous_response_id": previous, "max_output_tokens": 1, "temperature": 0})["id"]


def first_token(address, previous, words):
    """Returns the milliseconds to the first token of one more turn, which is not stored."""
    body = {"input": words, "previous_response_id": previous, "max_output_tokens": 1, "temperature": 0, "store": False, "stream": True}
    request = urllib.request.Request(address + "/v1/responses", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begin = time.perf_counter()
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            if line.startswith(b"event: response.output_text.delta") or line.startswith(b"event: response.completed"):
                return 1e3 * (time.perf_counter() - begin)
    raise SystemExit("the answer has no token")


def converted(options, memory):
    """Makes SmolLM2 with the memory's weights, which need no training here."""
    source = imported(model_file())
    run = source.parent / f"{source.name}-{memory}"
    if not (run / "last.safetensors").exists():
        command = [options.cortado, "linearize", source, "--from", ROOT / MEMORIES[memory][0], "--out", run]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return run


def with_tokenizer(run, folder):
    """Returns the run, or a copy of it with SmolLM2's tokenizer."""
    if (run / "tokenizer").exists():
        return run
    copy = shutil.copytree(run, folder / run.name)
    shutil.copytree(imported(model_file()) / "tokenizer", copy / "tokenizer")
    return copy


def make(address, count, length):
    """Makes `count` conversations that begin with `length` words; returns their ids."""
    words = (ROOT / "data/tinyshakespeare.txt").read_text().split()[:length]
    begin = call(address, {"input": " ".join(words), "max_output_tokens": 1, "temperature": 0})["id"]
    ids = []
    for number in range(count):
        ids.append(turn(address, begin, f"This is conversation {number}."))
        if number % 100 == 99:
            say(f"{number + 1} of {count} conversations")
    return ids


def measure(server, ids, chance, clients=1):
    """Returns milliseconds (of stored conversations, of one that was just written). Several clients resume at once, each a conversation."""
    if clients > 1:
        with ThreadPoolExecutor(clients) as pool:
            ask = [pool.submit(first_token, server.address, one, f"Go on, {number}.") for number, one in enumerate(ids[:clients])]
            times = [answer.result() for answer in ask]
            now = [turn(server.address, one, "Once more.") for one in ids[:clients]]
            ask = [pool.submit(first_token, server.address, one, "Go on.") for one in now]
            return times, [answer.result() for answer in ask]
    times, fresh = [], []
    for number, one in enumerate(chance.sample(ids, min(ASKED, len(ids)))):
        times.append(first_token(server.address, one, f"Go on, {number}."))
        now = turn(server.address, one, f"Once more, {number}.")
        fresh.append(first_token(server.address, now, f"Go on, {number}."))
    return times, fresh


def row(what, times, fresh, more):
    return {
        "what": what,
        "median_ms": round(statistics.median(times), 1),
        "largest_ms": round(max(times), 1),
        "just_written_ms": round(statistics.median(fresh), 1),
        **more,
    }


def run(options, folder):
    model = with_tokenizer(options.run, folder) if options.run else converted(options, options.memory)
    settings = [*shlex.split(options.options), *shlex.split("" if options.run else MEMORIES[options.memory][1]), "--threads", options.threads]
    store = folder / "store"
    command = [options.cortado, "serve", model, "--log", "none", "--cache-bytes", "1G", "--store", store, "--store-bytes", "100G", *settings]
    chance = random.Random(options.seed)
    rows = []
    with Server("stored", command, options.threads, folder) as server:
        ids = make(server.address, min(options.in_memory, options.on_disk), options.words)
        held = int(metric(server.address, "cortado_cache_snapshots"))
        evicted = int(metric(server.address, "cortado_cache_evicted_total"))
        bytes_each = metric(server.address, "cortado_cache_bytes") / max(1, held)
        more = {"conversations": len(ids), "states_in_memory": held, "evicted": evicted, "mib_each": round(bytes_each / 2**20, 1)}
        rows.append(row("from memory", *measure(server, ids, chance), more))
        if len(ids) < options.on_disk:
            ids += make(server.address, options.on_disk - len(ids), options.words)
    with Server("stored", command, options.threads, folder) as server:
        size = sum(file.stat().st_size for file in store.iterdir()) / 2**30
        more = {"conversations": len(ids), "gib_on_disk": round(size, 2)}
        rows.append(row("from the disk, after a restart", *measure(server, ids, chance, options.clients), more))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cortado", type=Path, default=ROOT / "build/release/bin/cortado")
    parser.add_argument("--memory", choices=sorted(MEMORIES), default="macchiato")
    parser.add_argument("--run", type=Path, help="a run, instead of SmolLM2 with a memory")
    parser.add_argument("--words", type=int, default=1500, help="that all conversations begin with (1500: about 2,000 tokens)")
    parser.add_argument("--clients", type=int, default=1, help="resume so many conversations at once after the restart")
    parser.add_argument("--in-memory", type=int, default=100)
    parser.add_argument("--on-disk", type=int, default=1000)
    parser.add_argument("--options", help="of cortado serve (default: --weights int8; with --run none)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.options is None:
        options.options = "" if options.run else "--weights int8"
    with tempfile.TemporaryDirectory() as folder:
        rows = run(options, Path(folder))
    if options.json:
        print(json.dumps({"memory": str(options.run or options.memory), "options": options.options, "rows": rows}))
        return
    for one in rows:
        print(", ".join(f"{key} {value}" for key, value in one.items()))


if __name__ == "__main__":
    main()
