"""How `cortado serve` treats every field: wrong types and ranges are refused by name, and so are unsupported fields."""

import http.client
import json
import re
import urllib.request

import pytest

COMPLETION = {"prompt": "ab", "max_tokens": 1, "seed": 1}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]

# For both kinds of call: a field and its invalid values.
COMMON = {
    "model": [5, [], {}, True],
    "temperature": ["1", True, -0.1, 101, []],
    "top_p": ["1", -0.1, 1.1, {}],
    "top_k": ["1", 1.5, -2],
    "min_p": ["1", -0.1, 1.1],
    "presence_penalty": ["1", 2.1, -2.1],
    "frequency_penalty": ["1", 2.1, -2.1],
    "repetition_penalty": ["1", 0, -1],
    "logit_bias": [["x"], "x", {"a": 1}, {"-1": 1}, {"97": "x"}, {"97": 101}, {"97": None}],
    "seed": ["1", 1.5, 2**63, 1e300],
    "n": ["1", 0, 129, 1.5],
    "stop": [5, [5], {}, "x" * 1001, ["x"] * 17],
    "ignore_eos": [1, "true"],
    "stream": [1, "true"],
    "stream_options": [5, []],
    "max_tokens": ["1", -2, 1.5, True],
    "response_format": ["text", []],
}
ONLY_COMPLETION = {
    "prompt": [
        None, 5, {}, [], "", [""], [[]], [97.0], [True], [-1], [256], [2**64 - 1], ["a", 97], [[97], "a"], [97, "a"],
    ],  # fmt: skip
    "logprobs": [True, "1", -1, 21],
    "echo": [1, "true"],
    "best_of": ["1", 2],
    "add_special_tokens": [1],
}
ONLY_CHAT = {
    "messages": [None, "hi", {}, []],
    "max_completion_tokens": ["1", -2],
    "logprobs": [1, "true"],
    "top_logprobs": [2, "2"],  # without logprobs
    "modalities": [["audio"], 5],
    "chat_template_kwargs": [5, "x", []],
    "add_generation_prompt": [1, "true"],
    "continue_final_message": [1, "true"],
    "documents": [5, {}],
}
# Unsupported fields that would change answers.
UNSUPPORTED = [
    ("completions", {"suffix": "b"}, "suffix"),
    ("completions", {"guided_json": {"a": 1}}, "guided_json"),
    ("completions", {"response_format": {"type": "grammar"}}, "response_format.type"),
    ("completions", {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ("completions", {"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    ("chat/completions", {"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
    ("chat/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("chat/completions", {"functions": [{"name": "f"}]}, "functions"),
    ("chat/completions", {"audio": {"voice": "x"}}, "audio"),
    ("chat/completions", {"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0].type"),
]
# Inside of a message.
MESSAGES = [
    ("hi", "messages[0]"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": 5}, "messages[0].content"),
    ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
    ({"content": "a"}, "messages[0].role"),
    ({"role": 5, "content": "a"}, "messages[0].role"),
    ({"role": "poet", "content": "a"}, "messages[0].role"),
    ({"role": "user", "content": "a", "tool_calls": [{}]}, "messages[0].tool_calls"),
    ({"role": "user", "content": "a", "contents": "b"}, "messages[0].contents"),
]
# The same for the token endpoints.
TOKENS = [
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ("/tokenize", {"prompt": "a", "promt": "b"}, "promt"),
    ("/detokenize", {}, "tokens"),
    ("/detokenize", {"tokens": "a"}, "tokens"),
    ("/detokenize", {"tokens": [97.5]}, "tokens"),
    ("/detokenize", {"tokens": [256]}, "tokens"),
]


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, tiny):
    with start_server(tiny) as server:
        yield server


def refused(server, path, body, param, status=400):
    """Returns the message of OpenAI's error object, which must name `param`."""
    found, reply = server.post(path, body)
    assert found == status, reply
    assert set(reply) == {"error"} and set(reply["error"]) == {"message", "type", "param", "code"}
    assert reply["error"]["type"] == "invalid_request_error" and reply["error"]["param"] == param, reply
    assert isinstance(reply["error"]["message"], str) and reply["error"]["message"]
    return reply["error"]["message"]


@pytest.mark.parametrize("field", [*COMMON, *ONLY_COMPLETION])
def test_fields_of_a_completion(server, field):
    for value in (COMMON | ONLY_COMPLETION)[field]:
        refused(server, "/v1/completions", {**COMPLETION, field: value}, field)


@pytest.mark.parametrize("field", [*COMMON, *ONLY_CHAT])
def test_fields_of_a_conversation(server, field):
    for value in (COMMON | ONLY_CHAT)[field]:
        refused(server, "/v1/chat/completions", {**CHAT, field: value}, field)
    assert server.post("/v1/chat/completions", {**CHAT, "max_tokens": 1})[0] == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_options_of_a_stream(server, path):
    for options, field in (
        (5, ""),
        ([], ""),
        ({"include_usage": 1}, ".include_usage"),
        ({"include_usages": True}, ".include_usages"),
    ):
        body = {**(CHAT if "chat" in path else COMPLETION), "stream": True, "stream_options": options}
        refused(server, path, body, "stream_options" + field)


@pytest.mark.parametrize("field", sorted((COMMON | ONLY_COMPLETION).keys() - {"prompt"}))
def test_null_is_as_nothing(server, field):
    body = {**COMPLETION, "max_tokens": 2}
    plain = server.post("/v1/completions", body)[1]["choices"][0]
    status, reply = server.post("/v1/completions", {**body, field: None})
    assert status == 200, reply
    if field not in ("seed", "max_tokens"):
        assert reply["choices"][0] == plain


@pytest.mark.parametrize(("path", "fields", "param"), UNSUPPORTED)
def test_what_is_not_there(server, path, fields, param):
    body = {**(CHAT if path.startswith("chat") else COMPLETION), **fields}
    refused(server, "/v1/" + path, body, param)


@pytest.mark.parametrize(("message", "param"), MESSAGES)
def test_fields_of_a_message(server, message, param):
    refused(server, "/v1/chat/completions", {**CHAT, "messages": [message]}, param)


# Values that `--strict` refuses: out of range, or not in OpenAI's API. Without it the field has no effect.
STRICT = [
    ("stop", ""),
    ("stop", ["", None]),
    ("stream_options", {"include_usage": True}),
    ("max_tokens", -1),
    ("max_tokens", 10**6),
    ("n", 17),
    ("logit_bias", []),
    ("num_beams", 1),
    ("repeat_penalty", 1),
    ("keep_alive", "5m"),
    ("chat_template_kwargs", {"enable_thinking": False}),
    ("some_clients_own", 1),
]


@pytest.fixture(scope="module", name="strict_server")
def fixture_strict_server(start_server, tiny):
    with start_server(tiny, "--strict") as server:
        yield server


@pytest.mark.parametrize(("field", "value"), STRICT)
def test_what_only_strict_servers_refuse(server, strict_server, field, value):
    body = {**COMPLETION, field: value}
    refused(strict_server, "/v1/completions", body, field)
    plain = server.post("/v1/completions", {**COMPLETION, "seed": 1})[1]["choices"]
    status, reply = server.post("/v1/completions", {**body, "temperature": 1})
    assert status == 200, reply
    if field != "max_tokens":
        assert reply["choices"][: len(plain)] == plain
    else:
        assert reply["choices"][0]["finish_reason"] in ("stop", "length")


def test_an_answer_that_is_asked_to_be_longer_than_any_ends_by_its_length(start_server, tiny):
    with start_server(tiny, "--max-answer", 7) as server:
        for asked in (8, -1, 2**63 - 1):
            reply = server.post("/v1/completions", {"prompt": "ab", "max_tokens": asked, "ignore_eos": True})[1]
            assert reply["choices"][0]["finish_reason"] == "length"
            assert reply["usage"]["completion_tokens"] == 7


@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), 2**62 + 1])
def test_a_seed_has_64_bits(server, seed):
    body = {**COMPLETION, "seed": seed, "n": 3, "max_tokens": 8}
    one, two = (server.post("/v1/completions", body)[1]["choices"] for _ in range(2))
    assert one == two and len({choice["text"] for choice in one}) > 1


def test_what_was_not_looked_at_is_told(server):
    data = json.dumps({**COMPLETION, "some_clients_own": 1, "bad\r\nname": 2, "keep_alive": 3}).encode()
    with urllib.request.urlopen(server.address + "/v1/completions", data) as reply:
        assert reply.headers["X-Ignored-Fields"] == "some_clients_own"


@pytest.mark.parametrize(("path", "body", "param"), TOKENS)
def test_fields_for_tokens(server, path, body, param):
    refused(server, path, body, param)


@pytest.mark.parametrize(
    ("wrong", "right"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("top_logprob", "top_logprobs")]
)
def test_unknown_fields_are_told_what_is_near(server, wrong, right):
    assert f'did you mean "{right}"?' in refused(server, "/v1/chat/completions", {**CHAT, wrong: 1}, wrong)


@pytest.mark.parametrize(
    "field", ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"]
)
def test_what_is_for_others_changes_nothing(server, field):
    plain = server.post("/v1/completions", COMPLETION)[1]["choices"]
    value = {"a": "b"} if field == "metadata" else "x"
    assert server.post("/v1/completions", {**COMPLETION, field: value})[1]["choices"] == plain


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"a"', b"{", b'{"prompt": "a"} x', b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "\xff"}',
     b'{"prompt": "\\ud800"}', b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": 1e400}',
     b"--x\r\n\r\n--x--\r\n"],
)  # fmt: skip
def test_bodies_that_are_none(server, body):
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        refused(server, path, body, None)


def test_paths_and_methods(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    for method, path in (("GET", "/v1"), ("GET", "/../etc/passwd"), ("GET", "/v1/models/a%2Fb")):
        connection.request(method, path)
        reply = connection.getresponse()
        error = json.loads(reply.read())["error"]
        assert reply.status == 404 and error["type"] == "not_found_error", (method, path)
    connection.close()


def documented(root):
    """Returns docs/serving.md's table: how each kind of call treats each field."""
    rows = {}
    for line in (root / "docs/serving.md").read_text().split("## Fields")[1].split("\n## ")[0].splitlines():
        if not line.startswith("| `"):
            continue
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in names.replace("`", "").split(", "):
            calls = dict(zip(("completions", "chat/completions", "responses"), cells, strict=False))
            rows[name] = {call: word for call, word in calls.items() if word}
    return rows


def of_openai(call):
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params
    from openai.types.responses import response_create_params

    params = {
        "completions": completion_create_params.CompletionCreateParamsBase,
        "chat/completions": chat_create_params.CompletionCreateParamsBase,
        "responses": response_create_params.ResponseCreateParamsBase,
    }
    return {*params[call].__annotations__, "stream"}


@pytest.mark.parametrize("call", ["completions", "chat/completions", "responses"])
def test_the_documents_tell_what_becomes_of_every_field_of_openais(server, root, call):
    rows = documented(root)
    assert {name for name in of_openai(call) if call not in rows.get(name, {})} == set()
    start = {"completions": COMPLETION, "chat/completions": CHAT, "responses": {"input": "a", "max_output_tokens": 1}}[call]
    for name, calls in rows.items():
        words = set(calls.get(call, "").split())
        assert words <= {"done", "neutral", "refused"}, (name, words)
        if not words:
            continue
        # Values that no field accepts.
        reply = server.post("/v1/" + call, {**start, name: [{"certainly": "not this"}]})[1]
        param = (reply.get("error") or {}).get("param")
        complained = re.split(r"[.\[]", param or "")[0] == name
        assert complained == (words != {"neutral"}), (name, words, reply)
