"""Two servers that share conversations: through a folder, through Redis, and behind nginx."""

import contextlib
import http.client
import json
import shutil
import signal
import socket
import subprocess
import threading

import pytest
from until import wait_until

pytestmark = pytest.mark.slow  # servers that are killed and restarted


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", name="redis")
def fixture_redis(tmp_path_factory):
    if not shutil.which("redis-server"):
        pytest.fail("redis-server is missing: `make setup` installs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path_factory.mktemp("redis"))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_until(lambda: answers(port), process)
    yield f"redis://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def say(server, text, previous=None, tokens=10):
    body = {"input": text, "max_output_tokens": tokens, "seed": 3, "temperature": 0.8, "previous_response_id": previous}
    status, reply = server.post("/v1/responses", body)
    assert status == 200, reply
    return reply


def text_of(response):
    return response["output"][0]["content"][0]["text"]


def conversation(servers):
    """Runs four turns, each on the next server; returns the texts, and how many tokens were cached."""
    previous, texts, cached = None, [], []
    for turn, text in enumerate(("My name is Anna.", "I live in Oslo.", "What is my name?", "Where do I live?")):
        reply = say(servers[turn % len(servers)], text, previous)
        previous = reply["id"]
        texts.append(text_of(reply))
        cached.append(reply["usage"]["input_tokens_details"]["cached_tokens"])
    return texts, cached


@pytest.mark.parametrize("kind", ["redis", "folder"])
def test_any_replica_goes_on_with_any_conversation(start_server, talker, redis, tmp_path, kind):
    store = redis if kind == "redis" else tmp_path / "store"
    words = (talker, "--weights", "int8", "--store", store)
    with start_server(*words) as one, start_server(*words) as other, start_server(talker, "--weights", "int8") as single:
        expected = conversation([single])
        assert conversation([one, other]) == expected
        assert all(count > 0 for count in expected[1][1:])


def test_a_replica_that_is_killed_loses_only_its_answer(start_server, talker, redis):
    words = (talker, "--weights", "int8", "--store", redis)
    with start_server(*words) as other:
        with killed(start_server, *words) as one:
            first = say(one, "My name is Anna.")
            lost = threading.Thread(target=lambda: ignore(lambda: say(one, "Count to a thousand.", first["id"], 2000)))
            lost.start()
            wait_until(lambda: one.metric("cortado_writing") == 1)
            one.process.send_signal(signal.SIGKILL)
            lost.join()
        second = say(other, "What is my name?", first["id"])
        assert second["usage"]["input_tokens_details"]["cached_tokens"] == first["usage"]["total_tokens"] - 1


@contextlib.contextmanager
def nginx(root, folder, replicas):
    """Starts nginx with examples/nginx.conf before these two servers; returns its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (root / "examples/nginx.conf").read_text()
    for before, now in (("8080", port), ("8081", replicas[0].port), ("8082", replicas[1].port)):
        text = text.replace(f"127.0.0.1:{before};", f"127.0.0.1:{now};")
    text = text.replace("/tmp/cortado-nginx.pid", str(folder / "nginx.pid"))
    (folder / "nginx.conf").write_text(text)
    command = [shutil.which("nginx") or "/usr/sbin/nginx", "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    process = subprocess.Popen(command, stderr=(folder / "nginx.log").open("w"))
    try:
        wait_until(lambda: answers(port), process)
        yield port
    finally:
        process.terminate()
        process.wait()


def through(port, body):
    """Yields the events of an answer as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("POST", "/v1/responses", json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    try:
        for line in iter(reply.readline, b""):
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    finally:
        reply.close()
        connection.close()


def test_behind_nginx(start_server, talker, redis, root, tmp_path):
    words = (talker, "--weights", "int8", "--store", redis)
    texts, previous = [], None
    with start_server(*words) as other, killed(start_server, *words) as one, nginx(root, tmp_path, (one, other)) as port:
        long = through(port, {"input": "Count to a thousand.", "max_output_tokens": 2000, "ignore_eos": True})
        assert any(event["type"] == "response.output_text.delta" for event in long)
        assert one.metric("cortado_writing") + other.metric("cortado_writing") == 1, "a stream came in one piece"
        long.close()
        for text in ("My name is Anna.", "I live in Oslo.", "What is my name?", "Where do I live?"):
            body = {"input": text, "max_output_tokens": 10, "seed": 3, "temperature": 0.8, "previous_response_id": previous}
            *_, last = through(port, body)
            reply = last["response"]
            texts.append(text_of(reply))
            previous = reply["id"]
            if len(texts) == 2:
                one.process.send_signal(signal.SIGKILL)
                one.process.wait()
    with start_server(talker, "--weights", "int8") as single:
        assert texts == conversation([single])[0]


@contextlib.contextmanager
def killed(start_server, *words):
    """A server that does not end well."""
    with pytest.raises(AssertionError), start_server(*words) as server:
        yield server


def ignore(work):
    try:
        work()
    except OSError:
        pass
