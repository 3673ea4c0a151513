"""Streams of `cortado serve` equal whole answers, with OpenAI's package, curl and http.client."""

import asyncio
import http.client
import json
import re
import subprocess

import openai
import pytest
from own_thread import in_own_thread
from until import wait_until

QUESTION = [{"role": "user", "content": "Name three animals."}]
PROMPT = "The three colours of the flag are"


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, talker):
    with start_server(talker, "--weights", "int8", "--max-prompt", 300) as server:
        yield server


@pytest.fixture(scope="module", name="client")
def fixture_client(server):
    return openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0)


def test_the_chunks_of_a_completion(client):
    options = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 8, "seed": 5, "temperature": 0.8}
    options |= {"logprobs": 2, "n": 2}
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1 and whole.id != chunks[0].id
    assert chunks[-1].choices == [] and chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == (
        whole.usage.model_dump(exclude={"prompt_tokens_details"})
    )
    assert all(chunk.usage is None for chunk in chunks[:-1])
    for expected in whole.choices:
        mine = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == expected.index]
        assert "".join(choice.text for choice in mine) == expected.text
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + [expected.finish_reason]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            parts = [getattr(choice.logprobs, name) for choice in mine if choice.logprobs]
            assert sum(parts, []) == getattr(expected.logprobs, name), name


def test_the_chunks_of_a_conversation(client):
    options = {"model": "smollm2", "messages": QUESTION, "max_tokens": 8, "temperature": 0}
    options |= {"logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True))
    first, last = chunks[0].choices[0], chunks[-1].choices[0]
    assert first.delta.role == "assistant" and last.finish_reason == whole.choices[0].finish_reason == "length"
    scores = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert scores == whole.choices[0].logprobs.content and len(scores) == 8
    for entry in scores:
        assert bytes(entry.bytes).decode() == entry.token and len(entry.top_logprobs) == 3
        top = [one.logprob for one in entry.top_logprobs]
        assert top == sorted(top, reverse=True)


def test_echo_comes_first(client):
    options = {"model": "smollm2", "prompt": "Größe:", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 1}
    whole = client.completions.create(**options)
    chunks = list(client.completions.create(**options, stream=True))
    assert chunks[0].choices[0].text == "Größe:"
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    scores = whole.choices[0].logprobs
    assert scores.token_logprobs[0] is None and None not in scores.token_logprobs[1:]
    assert scores.text_offset[0] == 0 and scores.text_offset[-4] == len("Größe:")
    for logprob, top in zip(scores.token_logprobs[1:], scores.top_logprobs[1:], strict=True):
        assert max(top.values()) >= logprob
    lists = (scores.tokens, scores.token_logprobs, scores.top_logprobs)
    for text, logprob, top in zip(*(values[-4:] for values in lists), strict=True):
        assert top == {text: logprob}  # greedy: the same number


def test_prompts_of_tokens_and_of_texts(client, server):
    options = {"model": "smollm2", "max_tokens": 5, "temperature": 0}
    texts = ["One, two,", PROMPT]
    tokens = [server.post("/tokenize", {"prompt": text})[1]["tokens"] for text in texts]
    expected = [client.completions.create(prompt=text, **options).choices[0].text for text in texts]
    for prompt in (texts, tokens):
        reply = client.completions.create(prompt=prompt, **options)
        assert [choice.text for choice in reply.choices] == expected
        assert reply.usage.prompt_tokens == sum(map(len, tokens))
    assert client.completions.create(prompt=tokens[1], **options).choices[0].text == expected[1]


def test_seeds(client):
    options = {"model": "smollm2", "prompt": PROMPT, "max_tokens": 8, "temperature": 1}
    several = [choice.text for choice in client.completions.create(seed=11, n=3, **options).choices]
    single = [client.completions.create(seed=seed, **options).choices[0].text for seed in (11, 12, 13)]
    assert several == single and len(set(single)) > 1
    unseeded = {client.completions.create(**options).choices[0].text for _ in range(4)}
    assert len(unseeded) > 1


def test_roles_and_parts(client):
    def answer(role, content):
        messages = [{"role": role, "content": content}, *QUESTION]
        reply = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=6, temperature=0)
        return reply.choices[0].message.content, reply.usage.prompt_tokens

    expected = answer("system", "Answer in French.")
    assert answer("developer", "Answer in French.") == expected  # the template does not know the word
    assert answer("system", [{"type": "text", "text": "Answer "}, {"type": "text", "text": "in French."}]) == expected
    assert answer("system", "Answer.")[1] < expected[1]


def test_a_stop_is_not_shown(client):
    options = {"model": "smollm2", "prompt": "One, two, three, four,", "max_tokens": 12, "temperature": 0}
    plain = client.completions.create(**options).choices[0].text
    stop = plain[4:9]  # over several tokens
    for stream in (False, True):
        reply = client.completions.create(**options, stop=["never", stop], stream=stream)
        choices = [chunk.choices[0] for chunk in reply] if stream else [reply.choices[0]]
        assert "".join(choice.text for choice in choices) == plain[: plain.index(stop)]
        assert choices[-1].finish_reason == "stop"


@in_own_thread
def test_conversations_together_as_alone(server):
    client = openai.AsyncOpenAI(base_url=server.address + "/v1", api_key="none")
    questions = ["Why is the sky blue?", "Tell me a story.", "Hi", "What is 2+2?", "Name a river.", "Say nothing."]

    async def ask(seed, stream):
        messages = [{"role": "user", "content": questions[seed]}]
        options = {"model": "smollm2", "messages": messages, "seed": seed, "max_tokens": 8 + seed, "temperature": 0.8}
        if not stream:
            return (await client.chat.completions.create(**options)).choices[0].message.content
        chunks = await client.chat.completions.create(**options, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def compare():
        alone = [await ask(seed, False) for seed in range(len(questions))]
        together = await asyncio.gather(*(ask(seed, seed % 2 == 0) for seed in range(len(questions))))
        return alone, list(together)

    alone, together = asyncio.run(compare())
    assert alone == together


def test_a_stream_that_is_closed_frees_its_row(client, server):
    options = {"model": "smollm2", "messages": QUESTION, "max_tokens": 4000}
    stream = client.chat.completions.create(**options, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    wait_until(lambda: server.metric("cortado_writing") == 1)
    cancelled = 'cortado_answers_total{end="cancelled"}'
    before = server.metric(cancelled)
    stream.close()
    wait_until(lambda: server.metric("cortado_writing") == 0)
    wait_until(lambda: server.metric(cancelled) == before + 1)  # it has not ended normally


def test_too_long_a_prompt(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="smollm2", prompt="word " * 400)
    assert (error.value.param, error.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="smollm2", messages=[{"role": "user", "content": "word " * 400}])
    assert (error.value.param, error.value.code) == ("messages", "context_length_exceeded")


def curl(*words):
    return subprocess.run(["curl", "-sS", *words], check=True, capture_output=True, text=True, timeout=300).stdout


def test_curl(server):
    """Runs the README's commands."""
    assert json.loads(curl(server.address + "/v1/models"))["data"][0]["id"] == "smollm2"
    prompt = json.dumps({"prompt": "One, two,", "max_tokens": 4, "temperature": 0})
    text = json.loads(curl(server.address + "/v1/completions", "-d", prompt))["choices"][0]["text"]
    chat = {"messages": QUESTION, "max_tokens": 4, "temperature": 0}
    json_type = ("-H", "Content-Type: application/json")
    reply = json.loads(curl(server.address + "/v1/chat/completions", *json_type, "-d", json.dumps(chat)))
    assert text and reply["choices"][0]["message"]["content"]
    events = curl("-N", server.address + "/v1/chat/completions", "-d", json.dumps({**chat, "stream": True}))
    lines = [line for line in events.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    parts = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "") for line in lines[:-1]]
    assert "".join(parts) == reply["choices"][0]["message"]["content"]


def test_tokens_go_round(server):
    text = "Grüße, 世界! <|im_end|> 🦊\n"
    tokens = server.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]
    assert tokens["count"] == len(tokens["tokens"])
    assert server.post("/detokenize", {"tokens": tokens["tokens"]})[1]["prompt"] == text
    info = json.loads(server.get("/tokenizer_info"))
    for name in ("bos_token", "eos_token"):
        assert len(server.post("/tokenize", {"prompt": info[name], "add_special_tokens": False})[1]["tokens"]) == 1
    assert "<|im_start|>" in info["chat_template"]


def test_metrics_are_prometheus(server):
    def figures():
        text = server.get("/metrics")
        for line in text.splitlines():
            assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [-+0-9.e]+', line), line
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}

    before = figures()
    server.post("/v1/completions", {"prompt": [1, 2, 3, 4], "max_tokens": 6, "ignore_eos": True})
    requests = "cortado_request_seconds_count"
    wait_until(lambda: server.metric(requests) > before[requests] and server.metric("cortado_writing") == 0)
    after = figures()
    for name, count in (("prompt", 4), ("written", 6)):
        name = f"cortado_{name}_tokens_total"
        assert after[name] - before[name] == count, name
    assert after[requests] == before[requests] + 1
    assert after['cortado_request_seconds_bucket{le="+Inf"}'] == after[requests]
    assert {"status", "version", "waiting", "reading", "writing"} <= json.loads(server.get("/health")).keys()


def headers_of(server, method, path, headers, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    connection.request(method, path, body=body, headers=headers)
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return reply.status, reply.headers


def test_pages_that_may_call(start_server, tiny):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    body = json.dumps({"prompt": "a", "max_tokens": 1})
    with start_server(tiny, "--cors", "https://good.example") as server:
        good, evil = {"Origin": "https://good.example"}, {"Origin": "https://evil.example"}
        status, headers = headers_of(server, "OPTIONS", "/v1/completions", good | asked)
        assert status == 204 and headers["Access-Control-Allow-Origin"] == "https://good.example"
        assert "authorization" in headers["Access-Control-Allow-Headers"].lower()
        assert "POST" in headers["Access-Control-Allow-Methods"]
        status, headers = headers_of(server, "POST", "/v1/completions", good, body)
        assert status == 200 and headers["Access-Control-Allow-Origin"] == "https://good.example"
        for method, path in (("OPTIONS", "/v1/completions"), ("POST", "/v1/completions"), ("GET", "/metrics")):
            status, headers = headers_of(server, method, path, evil | asked, body if method == "POST" else None)
            assert status == 403 and headers["Access-Control-Allow-Origin"] != "https://evil.example"
        assert headers_of(server, "POST", "/v1/completions", {"Origin": "null"}, body)[0] == 403
    with start_server(tiny, "--cors", "*") as server:
        status, headers = headers_of(server, "POST", "/v1/completions", evil, body)
        assert status == 200 and headers["Access-Control-Allow-Origin"] == "*"


def test_an_ending_server_ends_its_streams(start_server, tiny):
    with start_server(tiny, "--drain-seconds", 200) as server:
        client = openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0)
        options = {"model": "tiny", "prompt": "x", "max_tokens": 4000, "seed": 1, "logprobs": 0}
        stream = iter(client.completions.create(**options, stream=True, extra_body={"ignore_eos": True}))
        first = next(stream)
        server.ask_to_end()
        wait_until(server.is_ending)
        with pytest.raises((openai.APIStatusError, openai.APIConnectionError)):
            client.completions.create(**options)
        choices = [chunk.choices[0] for chunk in (first, *stream)]
        assert choices[-1].finish_reason == "length"
        assert sum(len(choice.logprobs.tokens) for choice in choices if choice.logprobs) == 4000
    with pytest.raises(openai.APIConnectionError):
        client.models.list()
