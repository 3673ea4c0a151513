"""Measures a server with OpenAI's API from its clients: time to the first token, tokens per second, one client and
several.

    bench/serve/clients.py http://127.0.0.1:8080 [--clients 1,8] [--prompt 100] [--tokens 64] [--rounds 3] [--held] [--json]

Every client's prompt is its own (nothing that a cache knows), and answers do not end by themselves. Medians of the
rounds. Example:

    cortado serve models/smollm2 --weights int8 & bench/serve/clients.py http://127.0.0.1:8080
"""

import argparse
import bisect
import concurrent.futures
import json
import random
import re
import socket
import statistics
import time
import urllib.parse

EVENT = re.compile(rb"^data: (\{.*\})", re.MULTILINE)

# For --held: no answer ends before its last token.
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "kind": {"enum": ["cat", "dog"]}, "age": {"type": "integer"}},
        "required": ["name", "kind", "age"],
        "additionalProperties": False,
    },
}
HELD = {"response_format": {"type": "json_schema", "json_schema": {"name": "animals", "schema": SCHEMA}}}
WORDS = "the river carries old stones down to a quiet sea where ships wait for wind and rain".split()


def ask(address, prompt, tokens, fields=None, arrived=None):
    """(seconds to the first token, to the last, tokens) of one streamed answer; `arrived` gets when each came.

    While it comes its bytes and the clock are read, no more: the client has the same CPUs as the server.
    """
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}, **(fields or {})}  # fmt: skip
    data = json.dumps(body).encode()
    where = urllib.parse.urlsplit(address)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    begin = time.perf_counter()
    reply, ends, times = b"", [], []
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(head.encode() + data)
        while part := connection.recv(1 << 16):
            reply += part
            ends.append(len(reply))
            times.append(time.perf_counter())
            if arrived is not None and b'"choices":[{' in part:
                arrived.append(times[-1])
    if b" 200 " not in reply.split(b"\r\n", 1)[0]:
        raise RuntimeError(f"{address}: {reply[:500].decode()}")
    came, written = [], 0
    for line in EVENT.finditer(reply):
        event = json.loads(line[1])
        if event["choices"]:
            came.append(times[bisect.bisect_left(ends, line.end())])
        if event.get("usage"):
            written = event["usage"]["completion_tokens"]
    return came[0] - begin, came[-1] - begin, written


def prompts(count, words, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(words)) for _ in range(count)]


def measure(address, clients, words, tokens, seed, fields):
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        begin = time.perf_counter()
        answers = list(pool.map(lambda prompt: ask(address, prompt, tokens, fields), prompts(clients, words, seed)))
        seconds = time.perf_counter() - begin
    written = sum(answer[2] for answer in answers)
    decode = [(count - 1) / (last - first) for first, last, count in answers if count > 1]
    return {
        "first_token_seconds": statistics.median(answer[0] for answer in answers),
        "tokens_per_second_each": statistics.median(decode),
        "tokens_per_second": written / seconds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("--clients", default="1,8")
    parser.add_argument("--prompt", type=int, default=100, help="words, of about one token each")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--held", action="store_true", help="answers are held to a JSON schema")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    counts = [int(count) for count in chosen.clients.split(",")]
    rounds = {count: [] for count in counts}
    fields = HELD if chosen.held else {}
    measure(chosen.address, 1, 10, 4, 0, fields)  # one-time work
    for number in range(chosen.rounds):
        for count in counts:
            rounds[count].append(measure(chosen.address, count, chosen.prompt, chosen.tokens, 1 + number, fields))
    medians = {
        count: {key: statistics.median(one[key] for one in all_of) for key in all_of[0]} for count, all_of in rounds.items()
    }
    if chosen.json:
        print(json.dumps(medians))
        return
    print("| clients | first token s | tokens/s each | tokens/s in all |\n|---:|---:|---:|---:|")
    for count, row in medians.items():
        print("| {} | {:.3f} | {:.1f} | {:.1f} |".format(count, *row.values()))


if __name__ == "__main__":
    main()
