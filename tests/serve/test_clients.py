"""Clients of OpenAI's API, as they are installed, each in a conversation with `cortado serve`. OpenAI's own package for
Python is in test_openai.py, lm-eval in test_lm_eval.py; LiteLLM, which is large, comes with `make test-clients`."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from own_thread import in_own_thread

pytestmark = pytest.mark.slow  # large packages; OpenAI's own is in test_openai.py

CLIENTS = pathlib.Path(__file__).parent.parent / "clients"
QUESTION, FOLLOWING = "Name one primary colour.", "And another one?"
RULE = "You are brief."


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, talker):
    with start_server(talker, "--weights", "int8") as server:
        yield server


@pytest.fixture(scope="module", name="url")
def fixture_url(server):
    return server.address + "/v1"


@pytest.fixture(scope="module", name="conversation")
def fixture_conversation(server):
    """Returns the answers to both questions, at temperature 0 and of at most eight tokens."""
    messages = [{"role": "system", "content": RULE}]
    answers = []
    for question in (QUESTION, FOLLOWING):
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "max_tokens": 8, "temperature": 0}
        status, reply = server.post("/v1/chat/completions", body)
        assert status == 200, reply
        messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
        answers.append(messages[-1]["content"])
    return answers


def test_langchain(url, conversation):
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_openai import ChatOpenAI

    options = {"base_url": url, "api_key": "none", "model": "smollm2", "temperature": 0, "max_tokens": 8}
    model = ChatOpenAI(**options)
    messages = [SystemMessage(RULE), HumanMessage(QUESTION)]
    first = model.invoke(messages)
    messages += [first, HumanMessage(FOLLOWING)]
    streamed = "".join(chunk.content for chunk in model.stream(messages))
    assert [first.content, streamed] == conversation
    responses = ChatOpenAI(**options, use_responses_api=True, use_previous_response_id=True)
    messages = [SystemMessage(RULE), HumanMessage(QUESTION)]
    first = responses.invoke(messages)
    second = responses.invoke([*messages, first, HumanMessage(FOLLOWING)])
    assert [first.text, second.text] == conversation
    assert second.usage_metadata["input_token_details"]["cache_read"] > first.usage_metadata["input_tokens"]


@in_own_thread
def test_pydantic_ai(url, conversation):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        model = kind("smollm2", provider=OpenAIProvider(base_url=url, api_key="none"))
        agent = Agent(model, instructions=RULE, model_settings={"temperature": 0, "max_tokens": 8})
        first = agent.run_sync(QUESTION)
        second = agent.run_stream_sync(FOLLOWING, message_history=first.all_messages())
        assert [first.output, "".join(second.stream_text(delta=True))] == conversation, kind


def test_litellm(url, conversation, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    options = {"model": "openai/smollm2", "api_base": url, "api_key": "none", "temperature": 0}
    messages = [{"role": "system", "content": RULE}, {"role": "user", "content": QUESTION}]
    first = litellm.completion(messages=messages, max_tokens=8, **options).choices[0].message
    messages += [first.model_dump(), {"role": "user", "content": FOLLOWING}]
    stream = litellm.completion(messages=messages, max_tokens=8, stream=True, **options)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert [first.content, streamed] == conversation
    made = litellm.responses(input=QUESTION, instructions=RULE, max_output_tokens=8, **options)  # it makes 16 of it
    assert made.output[0].content[0].text.startswith(conversation[0])
    text = litellm.text_completion(prompt="One, two,", max_tokens=3, **(options | {"model": "text-completion-openai/smollm2"}))
    assert text.choices[0].text


def test_llm(url, conversation, tmp_path):
    """Uses its command, as users do."""
    model = {"model_id": "cortado", "model_name": "smollm2", "api_base": url}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none", "LLM_LOAD_PLUGINS": ""}
    options = ["-m", "cortado", "-o", "temperature", "0", "-o", "max_tokens", "8"]

    def ask(*words):
        command = [sys.executable, "-m", "llm", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    found = [ask(*options, "-s", RULE, QUESTION), ask(*options, "-s", RULE, "--no-stream", "-c", FOLLOWING)]
    assert found == [answer.strip() for answer in conversation]


@pytest.mark.skipif(not (CLIENTS / "node_modules").exists(), reason="npm's registry was not there")
@pytest.mark.parametrize("client", ["openai", "ai_chat", "ai_responses"])
def test_javascript(url, conversation, client):
    command = [shutil.which("node"), CLIENTS / f"{client}.mjs", url, RULE, QUESTION, FOLLOWING]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == conversation
