#!/usr/bin/env python3
"""Gives damaged stored conversations to `cortado serve --store FOLDER`, which it starts itself with a tiny model.

Each is a good one with flipped bits, cut, extended, filled with zeros, or with another header, other shapes, counts or another
record; the latter have a correct checksum, as made by somebody who knows the format. The server is asked to continue each
and to show it. The exit code is 1 after a crash; no answer in time; an answer that continues from damage that the checksum
detects; or an answer to a good request that differs from the one at the beginning.

Examples:
    scripts/fuzz_states.py                        # 10,000 states: some minutes
    scripts/fuzz_states.py --count 500 --seed 2
    scripts/fuzz_states.py --only 123             # repeats this one
"""

import argparse
import collections
import json
import pathlib
import random
import tempfile
import time

from serve_lab import PROGRAM, Server, fail, show, train

MASK = (1 << 64) - 1
PRIME1, PRIME2 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F
ASKED = {"input": "And then?", "max_output_tokens": 4, "seed": 5, "temperature": 0.8, "store": False}


class Checksum:
    """The checksum of src/cortado/formats/checksum.cpp."""

    def __init__(self):
        self.state = 0x9E3779B97F4A7C15

    @staticmethod
    def mix(state, word):
        state = ((state ^ (word * PRIME2 & MASK)) * PRIME1) & MASK
        return state ^ (state >> 29)

    def add(self, data):
        lanes = [1, 2, 3, 4]
        whole = len(data) // 32 * 32
        for at in range(0, whole, 8):
            lane = at // 8 % 4
            lanes[lane] = self.mix(lanes[lane], int.from_bytes(data[at : at + 8], "little"))
        for at in range(whole, len(data), 8):
            lanes[0] = self.mix(lanes[0], int.from_bytes(data[at : at + 8], "little"))
        for lane in lanes:
            self.state = self.mix(self.state, lane)
        self.state = self.mix(self.state, len(data))


class State:
    """A parsed safetensors file."""

    def __init__(self, data):
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        self.metadata = header.pop("__metadata__")
        body = data[8 + length :]
        entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
        self.tensors = {n: [e["dtype"], e["shape"], body[slice(*e["data_offsets"])]] for n, e in entries}

    def bytes(self):
        header, body = {"__metadata__": self.metadata}, b""
        for name, (kind, shape, data) in self.tensors.items():
            header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + body

    def sign(self):
        """Returns the correct checksum, as src/cortado/formats/safetensors.cpp computes it."""
        checksum = Checksum()
        for key, value in sorted(self.metadata.items()):
            if key != "checksum":
                checksum.add(key.encode())
                checksum.add(value.encode())
        for name, (kind, shape, data) in self.tensors.items():
            checksum.add(name.encode())
            checksum.add(" ".join([kind, *map(str, shape)]).encode())
            checksum.add(data)
        self.metadata["checksum"] = f"{checksum.state:016x}"


def raw(draw, good):
    """Damages the file's bytes; the checksum detects this."""
    data = bytearray(good)
    kind = draw.choice(["flip", "flip", "cut", "grow", "zero", "header", "length", "noise"])
    at = draw.randrange(len(data))
    if kind == "flip":
        for _ in range(draw.choice([1, 1, 3, 50])):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "grow":
        data += draw.randbytes(draw.choice([1, 8, 4096]))
    elif kind == "zero":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif kind == "header":
        at = 8 + draw.randrange(int.from_bytes(good[:8], "little"))
        data[at] = draw.choice(b'0123456789{}[]",:-')
    elif kind == "length":
        data[:8] = draw.choice([0, 1, len(data), 1 << 31, MASK, draw.getrandbits(64)]).to_bytes(8, "little")
    else:
        data = bytearray(draw.randbytes(draw.randrange(5000)))
    return kind, bytes(data)


VALUES = [None, -1, 0, 1e300, 1 << 63, "", "x" * 1000, [], {}, [[]], True, {"role": 5}, [{"role": "user"}]]


def scribble(draw, value):
    """Replaces one value in a JSON value."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(sorted(value))
        if draw.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: scribble(draw, value[key])}
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], scribble(draw, value[at]), *value[at + 1 :]]
    return draw.choice(VALUES)


def signed(draw, good):
    """Changes the content and updates the checksum."""
    state = State(good)
    kind = draw.choice(["record", "record", "record", "tokens", "numbers", "counter", "shape", "drop", "metadata", "unsigned"])
    names = sorted(state.tensors)
    if kind == "record":
        name = next(n for n in names if n.endswith("record"))
        record = scribble(draw, json.loads(bytes(state.tensors[name][2])))
        text = json.dumps(record).encode() if draw.random() < 0.95 else draw.randbytes(50)
        state.tensors[name][1:] = [[len(text)], text]
    elif kind == "tokens":
        name = next(n for n in names if n.endswith("tokens"))
        count = draw.choice([0, 1, 5, len(state.tensors[name][2]) // 4])
        data = b"".join((draw.choice([-1, 0, 65, 255, 256, 1 << 30])).to_bytes(4, "little", signed=True) for _ in range(count))
        state.tensors[name][1:] = [[count], data]
    elif kind in ("numbers", "counter"):
        kinds = ("F32",) if kind == "numbers" else ("I64", "I32")
        name = draw.choice([n for n in names if state.tensors[n][0] in kinds])
        data = bytearray(state.tensors[name][2])
        for _ in range(draw.choice([1, 10])):
            at = draw.randrange(max(1, len(data) // 4)) * 4
            data[at : at + 4] = draw.choice([b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff" * 4, b"\xff\xff\xff\x7f", draw.randbytes(4)])[: len(data) - at]
        state.tensors[name][2] = bytes(data)
    elif kind == "shape":
        name = draw.choice(names)
        state.tensors[name][1] = draw.choice([[], [0], [-1], [1 << 40], state.tensors[name][1][::-1], [*state.tensors[name][1], 1]])
    elif kind == "drop":
        del state.tensors[draw.choice(names)]
    elif kind == "metadata":
        state.metadata = {k: draw.choice([v, "", "x"]) for k, v in state.metadata.items()}
    if kind == "unsigned":
        state.metadata.pop("checksum", None)
    else:
        state.sign()
    return "signed " + kind, state.bytes()


class Fuzz:
    def __init__(self, options, server, store):
        self.options, self.server, self.store = options, server, store
        self.counts, self.wrong = collections.defaultdict(collections.Counter), collections.Counter()
        status, body = server.call("/v1/responses", {"input": "My name is Anna.", "max_output_tokens": 6, "seed": 1})
        if status != 200:
            fail(f"a good request was refused: {body!r}")
        self.id = json.loads(body)["id"]
        self.good = (store / f"{self.id}.safetensors").read_bytes()
        state = State(self.good)
        state.sign()
        if state.metadata != State(self.good).metadata:
            fail("the checksum is not made as the program makes it: this script is behind")
        self.answer = self.go_on(self.id)

    def go_on(self, name):
        status, body = self.server.call("/v1/responses", ASKED | {"previous_response_id": name}, timeout=self.options.seconds)
        answer = json.loads(body)
        return status, answer["output"][0]["content"][0]["text"] if status == 200 else answer["error"]["message"]

    def one(self, number):
        draw = random.Random(f"{self.options.seed} {number}")
        kind, data = (raw if draw.random() < 0.5 else signed)(draw, self.good)
        name = f"resp_fuzz{number}"
        file = self.store / f"{name}.safetensors"
        file.write_bytes(data)
        try:
            status, text = self.go_on(name)
            shown = self.server.call(f"/v1/responses/{name}", timeout=self.options.seconds)[0]
            self.counts[kind][f"{status} {shown}"] += 1
            if status == 200 and not kind.startswith("signed ") and data != self.good:
                self.wrong[f"went on from a state with damage ({kind}), --only {number}: {text!r:.60}"] += 1
        except (OSError, ValueError, KeyError, IndexError) as error:
            died = self.server.died()
            self.wrong[f"{'a crash' if died else 'no good answer'} ({kind}), --only {number}: {error!r:.80}"] += 1
            if died:
                self.server.start()
        file.unlink(missing_ok=True)
        return kind

    def run(self):
        start = time.monotonic()
        for number in range(self.options.count):
            self.one(number)
            if number % 200 == 199:
                if self.go_on(self.id) != self.answer:
                    self.wrong[f"another answer to a good request after {number}"] += 1
                rate = number / (time.monotonic() - start)
                show(f"fuzz: {number + 1:,} of {self.options.count:,} states, {rate:.0f}/s, {sum(self.wrong.values())} findings")
        return time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cortado", type=pathlib.Path, default=PROGRAM, help="the program")
    parser.add_argument("--count", type=int, default=10_000, help="states (default 10,000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30, help="seconds until an answer counts as missing")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="only this state, and show the answers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        store = folder / "store"
        run = train(options.cortado, folder)
        server = Server(options.cortado, run, folder, "--store", store, "--log", "none")
        fuzz = Fuzz(options, server, store)
        try:
            seconds = fuzz.run() if options.only is None else print(fuzz.one(options.only)) or 0
        finally:
            server.stop()
    for kind, counts in sorted(fuzz.counts.items()):
        print(f"{kind:18}" + "  ".join(f"{what}: {count:,}" for what, count in sorted(counts.items())))
    for what, count in fuzz.wrong.most_common(20):
        print(f"WRONG, {count:,} times: {what}")
    if fuzz.wrong:
        fail(f"{sum(fuzz.wrong.values())} findings")
    show(f"[fuzz_states] {options.count:,} states in {seconds:.0f} s: no crash, and none with damage was gone on from", True)


if __name__ == "__main__":
    main()
