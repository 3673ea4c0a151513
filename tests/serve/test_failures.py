"""Failing answers: their status, /metrics, /health and the log; and wrong requests."""

import http.client
import json
import pathlib
import shutil
import stat
import subprocess

import pytest
from until import wait_until

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
ASK = {"input": "hi", "max_output_tokens": 2}
FAILED = 'cortado_failures_total{path="/v1/responses"}'


def health(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request("GET", "/health")
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def events(server, body):
    """Returns the events of a streamed response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request("POST", "/v1/responses", json.dumps(body | {"stream": True}))
    lines = connection.getresponse().read().decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def reasons(server):
    """Returns the log's (path, status, reason) of failed requests."""
    lines = [json.loads(line) for line in pathlib.Path(server.log).read_text().splitlines() if line.startswith('{"time"')]
    return [(line["path"], line.get("status"), line["reason"]) for line in lines if "reason" in line]


def test_a_store_that_is_gone(start_server, talker, tmp_path):
    store = tmp_path / "store"
    with start_server(talker, "--weights", "int8", "--store", store, "--log", "json") as server:
        status, first = server.post("/v1/responses", ASK)
        assert status == 200 and health(server) == (200, health(server)[1]) and health(server)[1]["store"] == "ok"
        [file] = [path for path in store.iterdir() if path.name.startswith("resp_")]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        shutil.rmtree(store)
        status, answer = health(server)
        assert status == 503 and (answer["status"], answer["store"]) == ("store lost", "lost")

        status, answer = server.post("/v1/responses", ASK)
        assert status == 500 and answer["error"]["type"] == "server_error", answer
        last = events(server, ASK)[-1]
        assert last["type"] == "response.failed" and last["response"]["error"]["message"]
        status, answer = server.post("/v1/responses", ASK | {"background": True})
        assert status == 200
        wait_until(lambda: server.metric(FAILED) == 3)
        wait_until(lambda: server.metric('cortado_requests_total{path="/v1/responses",status="500"}') == 1)
        # The store is gone, so the id cannot be checked; "not found", as for a missing file, would be wrong.
        request = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        request.request("GET", "/v1/responses/" + first["id"])
        assert request.getresponse().status == 500
        assert server.post("/v1/chat/completions", CHAT)[0] == 200  # it needs no store
        store.mkdir()
        assert health(server)[0] == 200 and server.post("/v1/responses", ASK)[0] == 200
        wait_until(lambda: len(reasons(server)) == 4)
        told = reasons(server)
    assert [(path, status) for path, status, _ in told[:3]] == [("/v1/responses", 500), ("/v1/responses", 200), ("/v1/responses", None)]
    assert all(reason for _, _, reason in told)
    assert "hi" not in " ".join(reason for _, _, reason in told).split()


def test_a_redis_that_is_gone(start_server, talker, tmp_path):
    if not shutil.which("redis-server"):
        pytest.fail("redis-server is missing: `make setup` installs it")
    socket = __import__("socket").socket()
    socket.bind(("127.0.0.1", 0))
    port = socket.getsockname()[1]
    socket.close()
    redis = subprocess.Popen(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)],
                             stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        while "Ready to accept" not in redis.stdout.readline():
            assert redis.poll() is None
        with start_server(talker, "--weights", "int8", "--store", f"redis://127.0.0.1:{port}") as server:
            assert health(server)[0] == 200 and server.post("/v1/responses", ASK)[0] == 200
            redis.kill()
            redis.wait()
            status, answer = server.post("/v1/responses", ASK)
            assert status == 500 and "redis" in answer["error"]["message"]
            assert health(server)[0] == 503 and "redis" not in str(health(server))  # anybody may ask for that
    finally:
        redis.kill()
        redis.communicate()


@pytest.fixture(scope="module", name="few_letters")
def fixture_few_letters(program, root, tmp_path_factory, first_there):
    """A model whose vocabulary has no \"}\"."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "text.txt").write_text('{"a": 1, say it\n' * 400)
    mixer = first_there({"mixer": "gla"}, {"mixer": "softmax"})
    training = {"steps": 2, "batch": 2, "warmup": 1, "evaluate_every": 2, "context": 16, "tokenizer": "char"}
    config = {"dim": 16, "heads": 2, "layers": 1, "mixer": mixer, "context": 16, "training": training}
    (folder / "it.json").write_text(json.dumps(config))
    command = [str(program), "train", str(folder / "it.json"), "--data", str(folder / "text.txt"), "--out", str(folder / "run"), "--quiet"]
    subprocess.run(command, check=True, cwd=root)
    return folder / "run"


def test_a_form_without_a_way_out(start_server, few_letters):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    body = {"prompt": "say it", "max_tokens": 40, "response_format": form}
    with start_server(few_letters) as server:
        status, answer = server.post("/v1/completions", body)
        if status == 400 and "no grammar library" in answer["error"]["message"]:
            pytest.skip("this build has no XGrammar")
        assert status == 500 and "no token of what must come next" in answer["error"]["message"]
        wait_until(lambda: server.metric('cortado_failures_total{path="/v1/completions"}') == 1)
        wait_until(lambda: server.metric('cortado_requests_total{path="/v1/completions",status="500"}') == 1)
        wait_until(lambda: server.metric('cortado_answers_total{end="failed"}') == 1)
        assert server.post("/v1/completions", body | {"response_format": None})[0] == 200
    line = next(line for line in pathlib.Path(server.log).read_text().splitlines() if " 500 " in line)
    assert "no token of what must come next" in line and "say it" not in line


def test_who_has_hung_up_is_no_failure(start_server, few_letters):
    """The answer is cancelled, and the log has its own status for this."""
    with start_server(few_letters, "--max-answer", 10**7) as server:
        body = json.dumps({"prompt": "say it", "max_tokens": 10**7}).encode()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        connection.request("POST", "/v1/completions", body)
        wait_until(lambda: server.metric("cortado_writing") == 1)
        connection.close()
        wait_until(lambda: server.metric('cortado_requests_total{path="/v1/completions",status="499"}') == 1)
        wait_until(lambda: server.metric('cortado_answers_total{end="cancelled"}') == 1)  # one counts after the other
        assert "cortado_failures_total{" not in server.get("/metrics")


@pytest.fixture(scope="module", name="plain")
def fixture_plain(start_server, few_letters):
    with start_server(few_letters) as server:
        yield server


def asked(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request(method, path, body, headers or {})
    reply = connection.getresponse()
    text = reply.read()
    return reply.status, reply.getheader("Allow"), json.loads(text) if text[:1] == b"{" else None


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", "/v1/completions", "POST"), ("PUT", "/v1/chat/completions", "POST"), ("POST", "/v1/models", "GET"),
     ("DELETE", "/health", "GET"), ("PATCH", "/v1/responses/resp_a", "GET, DELETE"), ("POST", "/", "GET")],
)  # fmt: skip
def test_methods_that_a_path_has_not(plain, method, path, allowed):
    if path == "/" and asked(plain, "GET", "/")[0] == 404:
        pytest.skip("this build has no page")
    status, allow, answer = asked(plain, method, path)
    assert (status, allow) == (405, allowed) and answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1"), ("POST", "/v2/completions"), ("DELETE", "/a")])
def test_paths_that_are_none(plain, method, path):
    status, allow, answer = asked(plain, method, path)
    assert (status, allow, answer["error"]["type"]) == (404, None, "not_found_error")


def test_bodies_of_other_kinds(plain):
    body = json.dumps({"prompt": "say", "max_tokens": 1})
    for kind in ("application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded", "text/plain", ""):
        assert asked(plain, "POST", "/v1/completions", body, {"Content-Type": kind})[0] == 200, kind
    for kind in ("multipart/form-data; boundary=x", "image/png", "Audio/wav"):
        assert asked(plain, "POST", "/v1/completions", body, {"Content-Type": kind})[0] == 415, kind
    assert asked(plain, "POST", "/v1/completions", body, {"Content-Encoding": "compress"})[0] in (200, 415)
    assert asked(plain, "POST", "/v1/completions", b"\x28\xb5\x2f\xfd", {"Content-Encoding": "zstd"})[0] in (400, 415)
