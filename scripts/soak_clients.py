"""The clients of scripts/soak.py. What each does is a function of the seed and the client's number."""

import http.client
import json
import random
import socket
import struct
import threading
import time

from serve_lab import KEY

WORDS = (
    "speak hear citizen corn gods know chief enemy people price good poor rich lean misery revenge bread thirst".split()
)
BODY_LIMIT = 1 << 22  # --max-body
PROMPT_LIMIT = 20_000  # --max-prompt
HEAD = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
PATIENCE = 120  # seconds for any answer


class BrokenOff(Exception):
    """Raised for an answer without its end."""


def texts_of_stream(lines):
    """Returns {choice: text} of the events. Raises BrokenOff if the last one is missing."""
    texts = {}
    for line in lines:
        if line.startswith(b"data: [DONE]"):
            return texts
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise BrokenOff(f"an error in a stream: {event['error']['message']}")
        for choice in event["choices"]:
            piece = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            texts[choice["index"]] = texts.get(choice["index"], "") + piece
    raise BrokenOff("a stream without [DONE]")


def texts_of_whole(data):
    choices = json.loads(data)["choices"]
    return {x["index"]: x["message"]["content"] if "message" in x else x["text"] for x in choices}


class Client(threading.Thread):
    def __init__(self, soak, number, cycle, end):
        super().__init__(daemon=True)
        self.soak, self.number, self.end = soak, number, end
        self.chance = random.Random(f"{soak.options.seed}:{cycle}:{number}")
        self.nonce = f"{soak.options.seed}.{cycle}.{number}"
        self.asked = 0
        self.messages = []
        self.open = []  # half-open sockets

    def run(self):
        manners = {  # relative frequencies
            self.whole: 30,
            self.stream: 25,
            self.converse: 20,
            self.abort: 10,
            self.half_open: 3,
            self.slow: 3,
            self.bad_json: 3,
            self.oversized: 1,
            self.too_long: 1,
            self.large: 1,
            self.wrong_key: 2,
            self.deaf: 2,
        }
        while time.monotonic() < self.end and not self.soak.over.is_set():
            act = self.chance.choices(list(manners), list(manners.values()))[0]
            try:
                act()
                self.soak.count(act.__name__)
            except (OSError, http.client.HTTPException, BrokenOff, ValueError, KeyError) as error:
                self.soak.wrong(f"{act.__name__}: {type(error).__name__}: {error}")
            time.sleep(self.chance.uniform(0, 0.1))
        for sock in self.open:
            sock.close()

    # Requests.

    def words(self, most):
        self.asked += 1
        return f"[{self.nonce}.{self.asked}] " + " ".join(self.chance.choices(WORDS, k=self.chance.randrange(1, most)))

    def body(self, tokens=None):
        chance = self.chance
        body = {
            "prompt": self.words(80),
            "max_tokens": tokens or chance.randrange(1, 60),
            "seed": chance.randrange(1 << 40),
        }
        body |= {"temperature": chance.choice([0, 0.5, 1.0, 1.5]), "ignore_eos": chance.random() < 0.5}
        if chance.random() < 0.2:
            body |= {"n": 2, "top_p": 0.9, "presence_penalty": 0.3}
        if chance.random() < 0.2:
            body |= {"stop": ["e", "\n\n"], "logit_bias": {"101": -3}}
        if chance.random() < 0.1:  # prefixes that several prompts share
            body["prompt"] = (
                "All: Speak, speak. First Citizen: You are all resolved rather to die than to famish? " * 4
                + body["prompt"]
            )
        return body

    def send(self, path, data, key=KEY, connection=None):
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.soak.server.port, timeout=PATIENCE)
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        connection.request("POST", path, data, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"})
        return connection, connection.getresponse()

    def ask(self, path, body):
        """Returns the connection and the beginning of its answer; None if the server asks to retry later."""
        connection, reply = self.send(path, body)
        if reply.status == 200:
            return connection, reply
        text = reply.read().decode(errors="replace")
        connection.close()
        if reply.status != 429:
            raise BrokenOff(f"status {reply.status} for a good request: {text[:200]}")
        self.soak.count("429")
        return None

    def finished(self, path, body, texts):
        self.soak.finished.append((path, {k: v for k, v in body.items() if k != "stream"}, texts))

    # Well-behaved clients.

    def whole(self):
        body = self.body()
        if asked := self.ask("/v1/completions", body):
            self.finished("/v1/completions", body, texts_of_whole(asked[1].read()))
            asked[0].close()

    def stream(self):
        body = self.body() | {"stream": True}
        if asked := self.ask("/v1/completions", body):
            self.finished("/v1/completions", body, texts_of_stream(asked[1]))
            asked[0].close()

    def converse(self):
        """Sends the next turn of a conversation."""
        if len(self.messages) > 10:
            self.messages = []
        messages = [*self.messages, {"role": "user", "content": self.words(12)}]
        body = {
            "messages": messages,
            "max_tokens": self.chance.randrange(4, 40),
            "seed": self.chance.randrange(1 << 40),
        }
        if self.chance.random() < 0.5:
            body["stream"] = True
        if asked := self.ask("/v1/chat/completions", body):
            texts = texts_of_stream(asked[1]) if "stream" in body else texts_of_whole(asked[1].read())
            asked[0].close()
            self.finished("/v1/chat/completions", body, texts)
            self.messages = [*messages, {"role": "assistant", "content": texts[0]}]

    # Ill-behaved clients.

    def abort(self):
        """Hangs up in the middle, half of the time without closing the connection properly."""
        body = self.body(self.chance.choice([50, 2000])) | {"stream": self.chance.random() < 0.7}
        if asked := self.ask("/v1/completions", body):
            for _ in range(self.chance.randrange(6) if body["stream"] else 0):
                asked[1].readline()
            if asked[0].sock and self.chance.random() < 0.5:
                asked[0].sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            asked[1].close()
            asked[0].close()

    def half_open(self):
        """Sends a part of a request, and leaves the connection open."""
        sock = socket.create_connection(("127.0.0.1", self.soak.server.port), timeout=PATIENCE)
        data = json.dumps(self.body()).encode()
        head = f"{HEAD}Content-Length: {len(data)}\r\n\r\n"
        whole = head.encode() + data
        sock.sendall(whole[: self.chance.randrange(len(whole))])
        self.leave(sock)

    def deaf(self):
        """Requests a long answer, does not read it, and leaves the connection open."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", self.soak.server.port))
        data = json.dumps(self.body(2000) | {"stream": True}).encode()
        head = f"{HEAD}Content-Length: {len(data)}\r\n\r\n"
        sock.sendall(head.encode() + data)
        self.leave(sock)

    def leave(self, sock):
        self.open.append(sock)
        if len(self.open) > 2:
            self.open.pop(0).close()

    def slow(self):
        body = self.body(100) | {"stream": True}
        if not (asked := self.ask("/v1/completions", body)):
            return

        def lines():
            for line in asked[1]:
                time.sleep(self.chance.choice([0, 0, 0.01, 0.05]))
                yield line

        self.finished("/v1/completions", body, texts_of_stream(lines()))
        asked[0].close()

    def expect(self, reply, status):
        text = reply.read()
        if reply.status != status:
            raise BrokenOff(f"status {reply.status} instead of {status}: {text[:200]!r}")

    def bad_json(self):
        data = json.dumps(self.body()).encode()
        data = self.chance.choice([data[:-1], data + b"}", b"\xff" + data, data.replace(b":", b"", 1), b"", b"[" * 500])
        connection, reply = self.send("/v1/completions", data)
        self.expect(reply, 400)
        connection.close()

    def oversized(self):
        try:
            connection, reply = self.send(
                "/v1/completions", json.dumps(self.body() | {"user": "x" * BODY_LIMIT}).encode()
            )
        except OSError:  # the server may close before everything is sent
            return
        self.expect(reply, 413)
        connection.close()

    def too_long(self):
        """Sends a text of more tokens than allowed, which the server must notice without tokenizing all of it."""
        text = " ".join(self.chance.choices(WORDS, k=3)) + " "
        text *= self.chance.randrange(PROMPT_LIMIT, BODY_LIMIT - 1000) // len(text)
        path, body = self.chance.choice(
            [
                ("/v1/completions", {"prompt": text}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
                ("/v1/responses", {"input": text}),
            ]
        )
        connection, reply = self.send(path, body | {"max_output_tokens" if "input" in body else "max_tokens": 4})
        self.expect(reply, 400)
        connection.close()

    def large(self):
        """Sends a large valid request, after which much memory is free."""
        text = self.words(80) * (BODY_LIMIT // 1000)
        connection, reply = self.send("/tokenize", {"prompt": text})
        self.expect(reply, 200)
        connection.close()

    def wrong_key(self):
        """Sends a wrong key, then on the same connection the right one, whose answer must be for the second request."""
        body = self.body(4)
        connection, reply = self.send("/v1/completions", body, key=self.chance.choice(["", "x", KEY + "x"]))
        self.expect(reply, 401)
        if not reply.will_close:
            connection, reply = self.send("/v1/completions", body, connection=connection)
            if reply.status not in (200, 429):
                raise BrokenOff(
                    f"status {reply.status} for a good request behind one with a wrong key: {reply.read()[:100]!r}"
                )
            if reply.status == 200:
                self.finished("/v1/completions", body, texts_of_whole(reply.read()))
        connection.close()
