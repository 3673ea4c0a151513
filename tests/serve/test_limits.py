"""Limits of `cortado serve` that clients could evade, and what stops when the server stops."""

import concurrent.futures
import gzip
import json
import pathlib
import signal
import socket
import subprocess
import time

import pytest
from until import wait_until

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
    """Without -H, curl sends a form's content type."""
    body = json.dumps({"prompt": "x" * 20_000, "max_tokens": 1})
    command = ["curl", "-sS", f"{server.address}/v1/completions", "-d", body]
    reply = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=300).stdout)
    assert "choices" in reply, reply


def test_a_crowd_waits_to_be_taken(start_server, tiny):
    """Connections wait in the backlog, as on a busy machine."""
    with start_server(tiny) as server:
        server.process.send_signal(signal.SIGSTOP)
        try:
            crowd = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(60)]
        finally:
            server.process.send_signal(signal.SIGCONT)
        for connection in crowd:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for connection in crowd:
            with connection:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_name_that_was_bound_anew(server):
    """A page of evil.example, whose name now resolves to 127.0.0.1."""
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
            wait_until(lambda: server.metric("cortado_writing") == 1)
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
    """With more OpenMP threads than CPUs, threads sleep between operations: a token would take twice as long."""
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


def resident_mib(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def test_prompts_of_many_lengths_leave_little_behind(start_server, tiny, monkeypatch):
    """oneDNN caches one primitive per number of rows, in case the number returns."""
    monkeypatch.setenv("CORTADO_MATMUL", "onednn")
    with start_server(tiny, "--cache-bytes", 1) as server:

        def ask(lengths):
            for length in lengths:
                assert server.post("/v1/completions", {"prompt": [97] * length, "max_tokens": 1})[0] == 200

        ask(range(300, 330))
        before = resident_mib(server)
        ask(range(330, 430))
        assert resident_mib(server) < before + 150  # it was 280


def test_large_bodies_leave_no_memory_behind(start_server, talker):
    """Refused and answered requests in many connections' threads, each of which would keep its largest memory."""
    words = "a b c d " * 400_000
    asked = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": words}], "max_tokens": 1}, 400),
        ("/v1/responses", {"input": words, "max_output_tokens": 1}, 400),
        ("/v1/completions", {"prompt": words, "max_tokens": 1}, 400),
        ("/tokenize", {"prompt": words[:800_000]}, 200),
    ]
    with start_server(talker, "--weights", "int8", "--max-prompt", 1000) as server:
        assert server.post("/v1/completions", {"prompt": "a b c", "max_tokens": 1})[0] == 200
        before = resident_mib(server)
        with concurrent.futures.ThreadPoolExecutor(8) as clients:
            for (_, _, status), (found, reply) in zip(
                asked * 6, clients.map(lambda it: server.post(*it[:2]), asked * 6), strict=True
            ):
                assert found == status, str(reply)[:300]
                assert status == 200 or reply["error"]["code"] == "context_length_exceeded"
        wait_until(lambda: resident_mib(server) <= before + 40, seconds=60)


def test_a_text_that_is_far_too_long_is_not_read_to_its_end(start_server, talker):
    with start_server(talker, "--weights", "int8", "--max-prompt", 1000) as server:
        status, reply = server.post("/v1/completions", {"prompt": "a b c d " * 100_000, "max_tokens": 1})
        assert status == 400 and "of 800000 bytes has more than 1000 tokens" in reply["error"]["message"]
        # Many spaces are few tokens.
        spaces = server.post("/tokenize", {"prompt": " " * 30_000})[1]["count"]
        assert spaces < 1000
        assert server.post("/v1/completions", {"prompt": " " * 30_000, "max_tokens": 1})[0] == 200
