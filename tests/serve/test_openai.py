"""`cortado serve` with OpenAI's own Python package."""

import asyncio

import openai
import pytest
from own_thread import in_own_thread

QUESTION = [{"role": "user", "content": "Name one primary colour."}]


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, talker):
    with start_server(talker, "--weights", "int8", "--max-waiting", 4, "--max-rows", 4) as server:
        yield server


@pytest.fixture(scope="module", name="client")
def fixture_client(server):
    return openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0)


def test_models(client):
    names = [model.id for model in client.models.list()]
    assert names == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "cortado"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_completions(client):
    options = {"model": "smollm2", "max_tokens": 5, "temperature": 0}
    one = client.completions.create(prompt="The capital of France is", **options)
    assert one.choices[0].text.startswith(" Paris")
    assert one.usage.completion_tokens == 5
    several = client.completions.create(prompt=["The capital of France is", "One, two,"], n=2, **options)
    assert [choice.text for choice in several.choices[:2]] == [one.choices[0].text] * 2
    stopped = client.completions.create(prompt="The capital of France is", stop=["."], **options | {"max_tokens": 40})
    assert stopped.choices[0].finish_reason == "stop" and "." not in stopped.choices[0].text
    scored = client.completions.create(prompt="The capital", echo=True, logprobs=2, **options)
    assert scored.choices[0].text.startswith("The capital")
    assert len(scored.choices[0].logprobs.token_logprobs) == 2 + 5


def test_streams_say_what_wholes_say(client):
    options = {"model": "smollm2", "messages": QUESTION, "max_tokens": 12, "temperature": 0.8, "seed": 7}
    whole = client.chat.completions.create(**options)
    text, usage = "", None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage.completion_tokens == whole.usage.completion_tokens == 12


def test_logprobs_of_a_conversation(client):
    reply = client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == 3
    for entry in content:
        assert entry.logprob == entry.top_logprobs[0].logprob and entry.token == entry.top_logprobs[0].token


def test_a_conversation_goes_on_from_its_state(client):
    messages = [{"role": "developer", "content": "You are brief."}, *QUESTION]
    first = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=8, temperature=0)
    answer = {"role": "assistant", "content": first.choices[0].message.content}
    parts = {"role": "user", "content": [{"type": "text", "text": "Another"}, {"type": "text", "text": " one?"}]}
    second = client.chat.completions.create(model="smollm2", messages=[*messages, answer, parts], max_tokens=3)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_responses(client):
    first = client.responses.create(model="smollm2", input="My name is Anna. Say hello.", max_output_tokens=12, temperature=0)
    question = {"model": "smollm2", "previous_response_id": first.id, "input": "Who am I?", "max_output_tokens": 8}
    second = client.responses.create(temperature=0, **question)
    assert second.usage.input_tokens_details.cached_tokens == first.usage.input_tokens + 11
    assert client.responses.retrieve(second.id).output_text == second.output_text
    with client.responses.stream(temperature=0, **question) as events:
        types = [event.type for event in events]
        assert events.get_final_response is not None
    assert types[0] == "response.created" and types[-1] in ("response.completed", "response.incomplete")
    items = client.responses.input_items.list(second.id)
    assert items.data[0].content[0].text == "Who am I?"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    late = client.responses.create(model="smollm2", input="Count to a thousand.", background=True, max_output_tokens=4000)
    assert client.responses.cancel(late.id).status == "cancelled"


@in_own_thread
def test_together_as_alone(server):
    client = openai.AsyncOpenAI(base_url=server.address + "/v1", api_key="none")

    def ask(seed):
        prompt = "Once upon a time" + " and then" * seed
        return client.completions.create(model="smollm2", prompt=prompt, seed=seed, max_tokens=10, temperature=0.9)

    async def both():
        alone = [(await ask(seed)).choices[0].text for seed in range(4)]
        together = await asyncio.gather(*(ask(seed) for seed in range(4)))
        return alone, [reply.choices[0].text for reply in together]

    alone, together = asyncio.run(both())
    assert alone == together


@in_own_thread
def test_errors(client, server):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model="smollm2", messages=QUESTION, tools=[{"type": "function"}])
    assert error.value.param == "tools"
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="smollm2", prompt="a", temperature=1000)
    assert error.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="a")

    async def crowd():
        many = openai.AsyncOpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0)
        asked = [many.completions.create(model="smollm2", prompt="a", max_tokens=60) for _ in range(24)]
        return await asyncio.gather(*asked, return_exceptions=True)

    replies = asyncio.run(crowd())
    assert any(isinstance(reply, openai.RateLimitError) for reply in replies)
    assert any(not isinstance(reply, Exception) for reply in replies)


def test_keys(start_server, tiny, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the house\nsecret-one\nsecret-two\n")
    with start_server(tiny, "--api-key-file", keys) as server:
        for key in ("secret-one", "secret-two"):
            assert list(openai.OpenAI(base_url=server.address + "/v1", api_key=key).models.list())
        for key in ("secret", "secret-one-two", "secret-onf"):
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=server.address + "/v1", api_key=key).models.list()
        assert '"ok"' in server.get("/health")
