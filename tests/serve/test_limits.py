"""Limits of `cortado serve` that clients could go around, and what ends when the server ends."""

import gzip
import json
import pathlib
import socket
import subprocess
import time

import pytest

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, tiny):
    with start_server(tiny, "--max-body", "100K") as server:
        yield server


def status_of(server, head, body=b""):
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(f"{head}\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n".encode() + body)
        return int(connection.recv(65536).split()[1])


def large(size=300_000):
    return json.dumps({"prompt": "x", "max_tokens": 1, "user": "a" * size}).encode()


def test_a_large_body(server):
    assert server.post("/v1/completions", large(), JSON)[0] == 413


def test_a_large_body_in_chunks(server):
    body = large()
    head = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 4000]), body[i : i + 4000]) for i in range(0, len(body), 4000))
    assert status_of(server, head, b"\r\n" + chunks + b"0\r\n\r\n") == 413


def test_a_large_body_that_was_packed(server):
    assert server.post("/v1/completions", gzip.compress(large()), {**JSON, "Content-Encoding": "gzip"})[0] == 413


def test_what_curl_sends_may_be_as_large_as_any(server):
    """Without -H its type is that of a form."""
    body = json.dumps({"prompt": "x" * 20_000, "max_tokens": 1})
    command = ["curl", "-sS", f"{server.address}/v1/completions", "-d", body]
    reply = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    assert "choices" in reply, reply


def test_a_name_that_was_bound_anew(server):
    """A page of evil.example whose name has come to mean 127.0.0.1."""
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: evil.example:{server.port}\r\nOrigin: http://evil.example:{server.port}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        assert int(connection.recv(65536).split()[1]) == 403


def test_a_bias_beyond_the_vocabulary_names_its_field(server):
    status, reply = server.post("/v1/completions", {"prompt": "a", "logit_bias": {"99999": 1}})
    assert (status, reply["error"]["param"]) == (400, "logit_bias")


def test_more_prompts_than_can_ever_wait(server):
    status, reply = server.post("/v1/completions", {"prompt": ["a"] * 200, "max_tokens": 1})
    assert status == 200 or (status, reply["error"]["param"]) == (400, "prompt"), reply  # not "come again"


def test_answers_are_cut_when_the_time_is_up(start_server, tiny):
    with start_server(tiny, "--drain-seconds", 1, "--max-answer", 200_000) as server:
        body = json.dumps({"prompt": "a", "max_tokens": 200_000, "ignore_eos": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
            connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            while server.metric("cortado_writing") == 0:
                time.sleep(0.02)
            began = time.monotonic()
            server.end()
            assert time.monotonic() - began < 60
    assert "some answers were cut" in pathlib.Path(server.log).read_text()


def test_who_only_holds_a_connection_does_not_hold_the_server(start_server, tiny):
    def seconds():
        with start_server(tiny) as server, socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert connection.recv(65536)
            began = time.monotonic()
            server.end()
            return time.monotonic() - began

    # A connection that holds it does so for 5 seconds each time; a busy machine may be slow once.
    assert any(seconds() < 2 for _ in range(5))


def test_nobody_but_the_engine_keeps_threads_that_compute(start_server, talker, tmp_path):
    """Of more of OpenMP's threads than CPUs each sleeps between two operations: a token would take twice as long."""
    connections = 4
    stored = ["--store", tmp_path, "--cache-bytes", "1"]  # states go to files, and are read from them
    words = ["--weights", "int8", "--threads", "2", "--max-connections", connections, *stored]
    with start_server(talker, *words) as server:
        previous = None
        for _ in range(2 * connections):
            asked = {"input": "one two three " * 50, "max_output_tokens": 2, "previous_response_id": previous}
            status, answer = server.post("/v1/responses", asked)
            assert status == 200
            previous = answer["id"]
        engines, libtorchs = 2, 1
        others = 2 + connections  # the program's first, the listening one, and one for each connection
        found = len(list(pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()))
        assert found <= engines + libtorchs + others
