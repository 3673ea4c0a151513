"""`cortado serve` with curl and bare sockets: clients' mistakes, and closed connections."""

import contextlib
import json
import socket
import subprocess
import threading
import time
import urllib.request

import pytest
from until import wait_until


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, tiny):
    with start_server(tiny, "--max-body", "100K", "--max-prompt", 2000, "--max-answer", 10**7) as server:
        yield server


def send(server, text):
    """Returns a connection on which these bytes were sent."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    connection.sendall(text if isinstance(text, bytes) else text.encode())
    return connection


def posted(path, body):
    data = json.dumps(body)
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n{data}"


def test_curl(server):
    body = json.dumps({"prompt": "ROMEO:", "max_tokens": 8, "seed": 1})
    command = ["curl", "-sS", f"{server.address}/v1/completions", "-d", body]
    first = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    again = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert first["choices"] == again["choices"] and again["usage"]["prompt_tokens_details"]["cached_tokens"] == 6


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_frees_his_row(server, stream):
    endless = {"prompt": "x", "max_tokens": 10**7, "stream": stream, "ignore_eos": True}
    connections = [send(server, posted("/v1/completions", endless)) for _ in range(3)]
    wait_until(lambda: server.metric("cortado_writing") == 3)
    cancelled = 'cortado_answers_total{end="cancelled"}'
    before = server.metric(cancelled)
    for connection in connections:
        connection.close()
    wait_until(lambda: server.metric("cortado_writing") == 0)
    wait_until(lambda: server.metric(cancelled) == before + 3)  # none has ended normally


def test_requests_that_are_none(server):
    for text in ("\r\n\r\n", "GET\r\n\r\n", "POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", "\x00" * 100,
                 "GET / HTTP/9.9\r\n\r\n", "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):  # fmt: skip
        send(server, text).close()
    half = send(server, "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
    assert '"ok"' in server.get("/health")
    half.close()


def all_that_comes(connection, seconds=3):
    """Returns the bytes until the connection closes or nothing more comes."""
    received = b""
    with contextlib.suppress(TimeoutError, ConnectionResetError):
        while piece := connection.recv(65536):  # the first one has no limit
            received += piece
            connection.settimeout(seconds)
    return received


@pytest.mark.parametrize("log", ["text", "json"])
def test_paths_that_are_no_text(start_server, tiny, log):
    with start_server(tiny, "--log", log) as server:
        for path in ("/%FF", "/v1/models/%FF", "/v1/responses/%C0", "/v1/responses/resp_%FF"):
            got = all_that_comes(send(server, f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n"))
            assert got.startswith(b"HTTP/1.1 404"), (path, got)
        assert '"ok"' in server.get("/health")


def test_a_body_is_no_request(start_server, tiny, tmp_path):
    """A refused request's body is not parsed as the connection's next request."""
    (tmp_path / "keys").write_text("secret\n")
    inner = "GET /v1/models HTTP/1.1\r\nAuthorization: Bearer secret\r\n\r\n"
    key = "Authorization: Bearer secret\r\n"
    chunk = "8000\r\n" + inner.ljust(0x8000, "x") + "\r\n"

    def answers(head, body):
        connection = send(server, f"{head}\r\n\r\n")
        time.sleep(0.1)  # the library drops bytes that come with a request
        with contextlib.suppress(OSError):
            for part in (body, inner):
                connection.sendall(part.encode())
                time.sleep(0.1)
        got = all_that_comes(connection)
        assert got.count(b"HTTP/1.1 ") == 1, got
        return int(got.split()[1])

    with start_server(tiny, "--api-key-file", tmp_path / "keys", "--max-body", "100K") as server:
        for method, path in (("POST", "/v1/completions"), ("POST", "/v1/nothing"), ("PUT", "/v1/models"), ("DELETE", "/x")):
            assert answers(f"{method} {path} HTTP/1.1\r\nContent-Length: {len(inner)}", inner) == 401
            assert answers(f"{method} /x HTTP/1.1\r\n{key}Content-Length: {len(inner)}", inner) == 404
        assert answers(f"GET /health HTTP/1.1\r\nContent-Length: {len(inner)}", inner) == 200
        assert answers(f"POST /v1/completions HTTP/1.1\r\n{key}Transfer-Encoding: chunked", 5 * chunk + "0\r\n\r\n") == 413


def test_a_slow_client_does_not_hold_up_the_end(start_server, tiny):
    with start_server(tiny, "--drain-seconds", 1) as server:
        slow = send(server, "GET / HTTP/1.1\r\nX: ")
        stop = threading.Event()

        def trickle():
            with contextlib.suppress(OSError):
                while not stop.wait(0.5):
                    slow.sendall(b"x")

        sender = threading.Thread(target=trickle)
        sender.start()
        assert server.end() == 0
        stop.set()
        sender.join()


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15, 0.3])
def test_a_signal_at_the_beginning(program, tiny, delay):
    process = subprocess.Popen([program, "serve", tiny, "--port", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(delay)
    process.terminate()
    assert process.wait(300) in (0, -15)  # before it handles signals it ends like any program


def test_what_is_wrong_is_named(server):
    def refused(body, path="/v1/completions"):
        status, reply = server.post(path, body)
        assert set(reply["error"]) == {"message", "type", "param", "code"}
        return status, reply["error"]["param"]

    assert refused(b"{") == (400, None)
    assert refused(b"\xff\xfe") == (400, None)
    assert refused(b"[" * 5000) == (400, None)
    assert refused({"prompt": "x" * 3000}) == (400, "prompt")
    assert refused({"prompt": "x", "temprature": 1}) == (400, "temprature")
    assert server.post("/v1/completions", {"prompt": "x" * 200_000})[0] == 413
    assert server.post("/v1/nothing", {})[0] == 404


def test_tokens(server):
    assert server.post("/tokenize", {"prompt": "ab", "add_special_tokens": False})[1]["tokens"] == [97, 98]
    assert server.post("/detokenize", {"tokens": [97, 98]})[1]["prompt"] == "ab"
    assert "eos_token" in json.loads(server.get("/tokenizer_info"))


def test_pages_of_others_may_not_call(server, start_server, tiny):
    body = {"prompt": "a", "max_tokens": 1}
    assert server.post("/v1/completions", body, {"Origin": "https://evil.example"})[0] == 403
    assert server.post("/v1/completions", body, {"Origin": server.address})[0] == 200
    with start_server(tiny, "--cors", "https://good.example") as other:
        assert other.post("/v1/completions", body, {"Origin": "https://good.example"})[0] == 200
        assert other.post("/v1/completions", body, {"Origin": "https://evil.example"})[0] == 403
        # A browser's preflight request: the reply allows the method and the headers that it names.
        asked = {
            "Origin": "https://good.example",
            "Access-Control-Request-Method": "DELETE",
            "Access-Control-Request-Headers": "authorization,x-stainless-os,x-stainless-retry-count",
        }
        request = urllib.request.Request(other.address + "/v1/responses", headers=asked, method="OPTIONS")
        with urllib.request.urlopen(request) as reply:
            assert reply.status == 204
            assert reply.headers["Access-Control-Allow-Origin"] == asked["Origin"]
            assert reply.headers["Access-Control-Allow-Headers"] == asked["Access-Control-Request-Headers"]
            assert reply.headers["Access-Control-Allow-Methods"] == "DELETE"


def test_an_ending_server_ends_its_answers(start_server, tiny):
    with start_server(tiny, "--drain-seconds", 200) as server:
        reply = {}
        body = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "seed": 1}
        asking = threading.Thread(target=lambda: reply.update(server.post("/v1/completions", body)[1]))
        asking.start()
        wait_until(lambda: server.metric("cortado_writing") == 1)
        server.ask_to_end()
        wait_until(server.is_ending)
        with contextlib.suppress(OSError):  # it may have ended already
            assert server.post("/v1/completions", body)[0] == 503
        asking.join()
        assert reply["usage"]["completion_tokens"] == 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no model"),
        (["/nowhere"], "/nowhere"),
        (["RUN", "--model", "x"], "NAME=RUN"),
        (["RUN", "--model", "tiny=RUN"], "two models"),
        (["RUN", "--store", "redis://127.0.0.1:1"], "does not answer"),
        (["RUN", "--store", "redis://"], "expected redis://"),
        (["RUN", "--api-key-file", "/dev/null"], "has no key"),
        (["RUN", "--page", "/tmp/nothing"], "index.html"),
        (["RUN", "--host", "192.0.2.1"], "cannot be listened at"),
    ],
)
def test_what_cannot_be_served(program, tiny, words, message):
    words = [word.replace("RUN", str(tiny)) if "NAME" not in word else word for word in words]
    done = subprocess.run([program, "serve", *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (1, 2)
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
