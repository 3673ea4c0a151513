"""Malformed requests for scripts/fuzz_serve.py. Each is a function of a seed and its number, so it can be repeated."""

import copy
import dataclasses
import gzip
import json
import random
import zlib

from serve_lab import KEY

BODY_LIMIT = 1 << 16  # --max-body
HOST = "Host: 127.0.0.1\r\n"  # a server on localhost refuses other hosts
TEXT = {"prompt": "ROMEO:", "max_tokens": 4, "seed": 7}
BODIES = {
    "/v1/completions": [
        TEXT,
        TEXT | {"stream": True, "stream_options": {"include_usage": True}, "stop": ["\n", "zz"]},
        TEXT | {"prompt": [82, 79, 77], "logprobs": 3, "echo": True, "temperature": 0.7, "top_p": 0.9, "top_k": 5},
        TEXT | {"prompt": ["a", "b"], "n": 2, "logit_bias": {"65": -5, "66": 2.5}, "presence_penalty": 0.5},
        TEXT
        | {
            "prompt": [[1, 2], [3]],
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.2,
            "min_p": 0.1,
            "ignore_eos": True,
        },
    ],
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "seed": 7},
        {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]},
                {"role": "assistant", "content": "Hi."},
                {"role": "user", "content": "Again"},
            ],
            "max_completion_tokens": 3,
            "logprobs": True,
            "top_logprobs": 2,
            "stream": True,
            "response_format": {"type": "text"},
        },
    ],
    "/tokenize": [{"prompt": "ROMEO: a β ✓"}, {"content": "x", "add_special_tokens": True}],
    "/detokenize": [{"tokens": [82, 79, 77]}, {"tokens": [0, 255, 206, 178]}],
    "/v1/responses": [{"input": "Hello", "max_output_tokens": 3, "store": False}],
}
NUMBERS = "0 -0 -1 1e400 -1e400 1e-400 9223372036854775807 9223372036854775808 -9223372036854775809".split()
NUMBERS += ["18446744073709551615"]
NUMBERS += (
    "18446744073709551616 1e308 4.9e-324 1e-45 2147483648 -2147483649 0.1 1.5 4294967296 NaN Infinity -Infinity".split()
)
NUMBERS += ["01", "0x10", "1_000", "+1", "1.", ".5", "1e", "9" * 400, "0." + "1" * 400]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    "",
    "x",
    [],
    {},
    [[]],
    [None],
    {"": None},
    "\u0000",
    "\ud800",
    "￿",
    "a" * 5000,
    "✓" * 300,
]
VALUES += [
    [{}],
    {"a": {"b": []}},
    [1, "a"],
    [256],
    [-1],
    [1 << 31],
    [1 << 63],
    [1.0],
    [1e300],
    list(range(300)),
    [[], []],
    ["a", 1],
]
NOT_UTF8 = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe2\x82", b"\x80", b"\xf4\x90\x80\x80"]
UNKNOWN = (
    "prompts max_token functions tools suffix guided_json best_of \u0000 𝒳 __proto__ user model stream echo".split(" ")
)


@dataclasses.dataclass
class Case:
    number: int
    family: str
    parts: list  # bytes, sent with pauses in which the server can answer
    half_close: bool = True  # half-close the connection when no more bytes come back
    refused: bool = False  # a 2xx status would be wrong
    answers: int = 1 << 30  # largest number of answers; more would mean that one request was read as two


def request(path, body, head="", method="POST", length=None):
    key = f"Authorization: Bearer {KEY}\r\n"
    size = len(body) if length is None else length
    return (
        f"{method} {path} HTTP/1.1\r\n{HOST}{key}Connection: close\r\n{head}Content-Length: {size}\r\n\r\n".encode()
        + body
    )


def places(node):
    """Yields every (container, key) in a body."""
    keys = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else []
    for key, child in list(keys):
        yield node, key
        yield from places(child)


def bent(chance):
    """Returns a path and a valid body with some values, names or members changed."""
    path = chance.choice(list(BODIES))
    body = copy.deepcopy(chance.choice(BODIES[path]))
    numbers = {}
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        if not (all_places := list(places(body))):
            break
        node, key = chance.choice(all_places)
        how = chance.randrange(6)
        if how == 0:
            node[key] = copy.deepcopy(chance.choice(VALUES))
        elif how == 1:  # numbers that the json module cannot write are inserted afterwards
            mark = f"number{len(numbers)}"
            node[key], numbers[mark] = mark, chance.choice(NUMBERS)
        elif how == 2:
            del node[key]
        elif how == 3 and isinstance(node, dict):
            node[chance.choice(UNKNOWN)] = copy.deepcopy(chance.choice(VALUES))
        elif how == 4:
            node[key] = [copy.deepcopy(node[key]) for _ in range(chance.choice([0, 1, 2, 50]))]
        else:
            node[key] = copy.deepcopy(chance.choice(all_places)[0])
    text = json.dumps(body, ensure_ascii=chance.random() < 0.5)
    for mark, number in numbers.items():
        text = text.replace(f'"{mark}"', number)
    return path, text.encode("utf-8", "surrogatepass")


def bent_json(chance):
    return [request(*bent(chance))]


def deep(chance):
    depth = chance.choice([10, 60, 100, 127, 128, 129, 200, 1000, 10000, 30000])
    begin, end = chance.choice([(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
    inside = begin * depth + b"1" + end * chance.choice([depth, depth, depth - 1, 0])
    key = chance.choice([b"prompt", b"messages", b"tokens", b"logit_bias", b"unknown", b"stop", b"metadata"])
    return [request(chance.choice(list(BODIES)), (b'{"' + key + b'":' + inside + b"}")[: BODY_LIMIT - 1])]


def duplicate_keys(chance):
    path = chance.choice(list(BODIES))
    text = json.dumps(chance.choice(BODIES[path]))
    key, value = chance.choice(list(json.loads(text).items()))
    again = json.dumps(key) + ":" + json.dumps(chance.choice([value, None, 1, "x"]))
    return [request(path, (text[:-1] + ("," + again) * chance.choice([1, 2, 100]) + "}").encode())]


def broken_text(chance):
    """Returns a valid body with bytes removed, moved, doubled, added or changed."""
    path, text = chance.choice(list(BODIES)), b""
    text = bytearray(json.dumps(chance.choice(BODIES[path])).encode())
    for _ in range(chance.choice([1, 1, 2, 8])):
        at = chance.randrange(len(text) + 1)
        how = chance.randrange(7)
        if how == 0:
            text[at : at + chance.randrange(1, 9)] = b""
        elif how == 1:
            text[at:at] = chance.choice(NOT_UTF8)
        elif how == 2 and at < len(text):
            text[at] ^= 1 << chance.randrange(8)
        elif how == 3:
            text[at:at] = chance.choice(b'"{}[],:\\').to_bytes(1, "big") * chance.choice([1, 2, 500])
        elif how == 4:
            text[at:] = b""
        elif how == 5:
            text += chance.choice([b"x", b"{}", b"\0", b",", bytes(text)])
        else:
            text[at:at] = chance.choice(
                [b"\\ud800", b"\\u0000", b"\\x", b"\\u12", b"\0", b"\n", b"/**/", b"\xef\xbb\xbf"]
            )
    encoded = bytes(text).decode("utf-8", "replace").encode("utf-16") if chance.random() < 0.03 else bytes(text)
    return [request(path, encoded[: BODY_LIMIT - 1])]


def request_line(chance):
    method = chance.choice(
        ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "CONNECT", "PRI", "get", "", "G" * 9000]
    )
    target = chance.choice(
        list(BODIES) + ["/", "/health", "/metrics", "/v1/models/", "*", "", "http://x/health", "//", "/..", "/?"]
    )
    for _ in range(chance.randrange(3)):
        target += chance.choice(
            ["%ff", "%00", "%", "%zz", "%u0041", "?a=%ff&", "#", "/..", "a" * 9000, "\x7f", "&a" * 800, "%2e%2e/", " "]
        )
    if chance.random() < 0.4:  # a valid request line with an odd target
        place = chance.choice(["/", "/v1/models/", "/v1/models/%ff", "/%ff", "/v1/responses/", "/health?a="])
        return [
            f"{chance.choice(['GET', 'DELETE', 'HEAD'])} {place}{target[1:9]}".encode("latin-1").split(b" HTTP")[0]
            + f" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()
        ]
    version = chance.choice(["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "HTTP/1.1x", "http/1.1", "", "HTTP/-1"])
    space = chance.choice([" ", " ", " ", "  ", "\t", ""])
    line = (method + space + target + space + version).encode("latin-1")
    if chance.random() < 0.2:
        at = chance.randrange(len(line) + 1)
        line = line[:at] + bytes(chance.randrange(256) for _ in range(3)) + line[at:]
    return [line + chance.choice([b"\r\n", b"\r\n", b"\n", b"\r"]) + b"Host: 127.0.0.1\r\n\r\n"]


def headers(chance):
    names = [
        "Host",
        "Range",
        "Accept-Encoding",
        "Connection",
        "Content-Type",
        "Authorization",
        "Origin",
        "Expect",
        "Upgrade",
        "X",
        "",
    ]
    values = [
        "",
        "bytes=0-",
        "bytes=-1",
        "bytes=5-2",
        "bytes=99999999999999999999-",
        "bytes=" + "0-1," * 900,
        "gzip",
        "br;q=9",
        "keep-alive",
    ]
    values += [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=x",
        "100-continue",
        "h2c",
        "close",
    ]
    values += [
        "application/x-www-form-urlencoded",
        "Bearer",
        f"Bearer {KEY}x",
        "null",
        "http://evil",
        "a" * 8150,
        "a" * 9000,
        "\xff",
        "%ff%0d%0aX: y",
    ]
    lines = [
        f"{chance.choice(names)}{chance.choice([': ', ':', ' : ', '', ': '])}{chance.choice(values)}"
        for _ in range(chance.randrange(1, 5))
    ]
    if chance.random() < 0.05:
        lines *= chance.choice([100, 1000])
    head = chance.choice(["\r\n", "\r\n", "\r\n", "\n", "\r\n "]).join(lines) + "\r\n"
    path = chance.choice(["/health", "/v1/models", "/tokenize", "/v1/completions"])
    if chance.random() < 0.5:
        return [f"GET {path} HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\n{head}\r\n".encode("latin-1")]
    raw = request("/tokenize", json.dumps(BODIES["/tokenize"][0]).encode(), "@@")
    return [raw.replace(b"@@", head.encode("latin-1"))]


def chunks(chance):
    """Returns a chunked body whose sizes, ends or trailers are wrong."""
    body = json.dumps(BODIES["/tokenize"][0]).encode()
    sizes = [
        f"{len(body):x}",
        "0",
        "-1",
        "ffffffffffffffff",
        "7fffffffffffffff",
        "10000000000000000",
        "zz",
        "",
        " 5",
        "5;a=b",
        "0x5",
        "00005",
    ]
    raw = b""
    for _ in range(chance.choice([1, 1, 2, 20])):
        raw += (
            chance.choice(sizes).encode()
            + chance.choice([b"\r\n", b"\r\n", b"\n", b""])
            + body[: chance.randrange(len(body) + 1)]
        )
        raw += chance.choice([b"\r\n", b"\r\n", b"", b"\n"])
    raw += chance.choice([b"0\r\n\r\n", b"0\r\n", b"", b"0\r\nX: y\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 500 + b"\r\n"])
    coding = chance.choice(
        ["chunked", "chunked", "Chunked", "gzip, chunked", "identity", "chunked, chunked", "xchunked"]
    )
    also = chance.choice(["", "", "Content-Length: 5\r\n"])
    head = f"POST /tokenize HTTP/1.1\r\n{HOST}Authorization: Bearer {KEY}\r\nTransfer-Encoding: {coding}\r\n{also}\r\n"
    return [head.encode() + raw]


def lengths(chance):
    path = chance.choice(list(BODIES))
    body = json.dumps(BODIES[path][0]).encode()
    choices = [
        0,
        1,
        len(body) - 1,
        len(body) + 1,
        len(body) + 100,
        -1,
        -5,
        "",
        "x",
        "5x",
        "0x10",
        "1e3",
        1 << 31,
        1 << 32,
        1 << 63,
        1 << 64,
    ]
    choices += [BODY_LIMIT, BODY_LIMIT + 1, "5, 5", "5\r\nContent-Length: 6", "+5", "9" * 100]
    return [request(path, body, length=chance.choice(choices))]


def binary(chance):
    raw = chance.randbytes(chance.choice([1, 3, 50, 500, 5000, 40000]))
    front = [
        b"",
        b"",
        b"GET / HTTP/1.1\r\n",
        b"POST /tokenize HTTP/1.1\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    return [chance.choice(front) + raw + chance.choice([b"", b"\r\n\r\n"])]


def codings(chance):
    """Returns a body that claims to be compressed."""
    body = json.dumps(BODIES["/tokenize"][0]).encode()
    name = chance.choice(["gzip", "deflate", "br", "zstd", "identity", "gzip, gzip", "x"])
    packed = chance.choice([gzip.compress(body, mtime=0), zlib.compress(body), body])
    at = chance.randrange(len(packed))
    how = chance.randrange(4)
    packed = (
        packed[:at]
        if how == 0
        else packed[:at] + chance.randbytes(2) + packed[at + 2 :] if how == 1 else packed * (1 + how // 3)
    )
    return [request("/tokenize", packed, f"Content-Encoding: {name}\r\n")]


def oversized(chance):
    """Returns a valid request of more than --max-body bytes: with a length, in chunks, or compressed."""
    body = json.dumps(BODIES["/tokenize"][0]).encode() + b" " * (BODY_LIMIT * chance.choice([1, 2, 5]))
    how = chance.randrange(3)
    if how == 0:
        return [request("/tokenize", body)]
    if how == 1:
        return [request("/tokenize", gzip.compress(body, mtime=0), "Content-Encoding: gzip\r\n")]
    pieces = b"".join(b"1000\r\n" + body[i : i + 4096].ljust(4096) + b"\r\n" for i in range(0, len(body), 4096))
    head = f"POST /tokenize HTTP/1.1\r\n{HOST}Authorization: Bearer {KEY}\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head.encode() + pieces + b"0\r\n\r\n"]


def second_request(chance):
    """Returns a body that looks like a request, after a head that is refused or that has no body."""
    hidden = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    refused = ["", "Authorization: Bearer wrong\r\n", f"Authorization: Bearer {KEY}\r\nOrigin: http://evil\r\n"]
    method = chance.choice(["POST", "POST", "POST", "GET", "OPTIONS", "DELETE"])
    path = chance.choice([*BODIES, "/nothing"])
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{chance.choice(refused)}Content-Length: {len(hidden)}\r\n\r\n"
    )
    return [head.encode(), hidden]


FAMILIES = {  # relative frequency, and properties of the cases
    bent_json: (30, {"half_close": False}),
    broken_text: (16, {"half_close": False}),
    duplicate_keys: (4, {"half_close": False}),
    deep: (4, {"half_close": False}),
    request_line: (10, {}),
    headers: (10, {}),
    chunks: (8, {}),
    lengths: (8, {}),
    binary: (5, {}),
    codings: (3, {}),
    oversized: (1, {"refused": True}),
    second_request: (1, {"answers": 1}),
}
PATIENT = 500  # one in this many leaves its connection open, so that the server must close it


def make_case(seed, number):
    chance = random.Random(f"{seed}:{number}")
    families = [chunks, lengths, binary, headers, request_line] if number % PATIENT == 0 else list(FAMILIES)
    make = chance.choices(families, [FAMILIES[each][0] for each in families])[0]
    known = FAMILIES[make][1] | ({"half_close": False} if number % PATIENT == 0 else {})
    return Case(number, make.__name__, make(chance), **known)
