"""Answers in JSON and by schemas, with OpenAI's own Python package."""

import datetime
import enum
import json
import typing

import jsonschema
import openai
import pydantic
import pytest

ASK = [{"role": "user", "content": "Describe a cat named Tom, who is three years old, as JSON."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "kind": {"type": "string", "enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 30},
        "weight": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
        "home": {
            "type": "object",
            "properties": {"indoors": {"type": "boolean"}},
            "required": ["indoors"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "age", "weight", "tags", "home"],
    "additionalProperties": False,
}
NAMED = {"name": "animal", "strict": True, "description": "An animal.", "schema": SCHEMA}
FORMAT = {"type": "json_schema", "json_schema": NAMED}


class Kind(enum.Enum):
    CAT = "cat"
    DOG = "dog"


class Home(pydantic.BaseModel):
    indoors: bool


class Animal(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=30)
    kind: Kind
    age: int
    tags: list[Kind] = pydantic.Field(max_length=3)
    home: Home | None


@pytest.fixture(scope="module", name="server")
def fixture_server(start_server, talker):
    with start_server(talker, "--weights", "int8", "--max-rows", 8) as server:
        status, reply = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "response_format": {"type": "json_object"}})
        if status == 400 and "no grammar library" in reply["error"]["message"]:
            pytest.skip("this build has no XGrammar")
        yield server


@pytest.fixture(scope="module", name="client")
def fixture_client(server):
    return openai.OpenAI(base_url=server.address + "/v1", api_key="none", max_retries=0)


def check(text):
    """Checks that an answer follows the schema, with its keys in the schema's order."""
    it = json.loads(text)
    jsonschema.validate(it, SCHEMA)
    assert list(it) == SCHEMA["required"]


def test_conversations(client):
    options = {"model": "smollm2", "messages": ASK, "response_format": FORMAT, "max_tokens": 300}
    greedy = client.chat.completions.create(temperature=0, **options)
    assert greedy.choices[0].finish_reason == "stop"
    check(greedy.choices[0].message.content)
    several = client.chat.completions.create(n=3, temperature=1.3, seed=3, frequency_penalty=0.5, **options)
    texts = [choice.message.content for choice in several.choices]
    assert [choice.finish_reason for choice in several.choices] == ["stop"] * 3 and len(set(texts)) == 3
    for text in texts:
        check(text)


def test_streams_say_what_wholes_say(client):
    options = {"model": "smollm2", "messages": ASK, "response_format": FORMAT, "max_tokens": 300, "seed": 4}
    whole = client.chat.completions.create(**options).choices[0].message.content
    parts = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **options)]
    assert "".join(part.delta.content or "" for part in parts) == whole
    assert parts[-1].finish_reason == "stop"
    check(whole)


def test_objects_without_a_schema(client):
    """Only the model itself ends such an object, and a small model may continue for long."""
    reply = client.chat.completions.create(
        model="smollm2", messages=ASK, response_format={"type": "json_object"}, max_tokens=200, n=6, seed=1, frequency_penalty=0.5
    )
    whole = [choice.message.content for choice in reply.choices if choice.finish_reason == "stop"]
    assert whole
    for text in whole:
        assert isinstance(json.loads(text), dict)
    assert all(choice.message.content.startswith("{") for choice in reply.choices)


def test_completions(client):
    reply = client.completions.create(
        model="smollm2", prompt=["A cat: ", "A dog: "], max_tokens=300, temperature=0.7, seed=1, extra_body={"response_format": FORMAT}
    )
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        check(choice.text)


def test_parsed_into_classes(client):
    parsed = client.chat.completions.parse(model="smollm2", messages=ASK, response_format=Animal, max_tokens=300, seed=2)
    assert isinstance(parsed.choices[0].message.parsed, Animal)
    response = client.responses.parse(model="smollm2", input=ASK[0]["content"], text_format=Animal, max_output_tokens=300)
    assert isinstance(response.output_parsed, Animal)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="smollm2", messages=ASK, response_format=Animal, max_tokens=5)


def test_responses_go_on(client):
    text = {"format": {"type": "json_schema", **NAMED}}
    first = client.responses.create(model="smollm2", input=ASK[0]["content"], text=text, max_output_tokens=300, temperature=0)
    assert first.status == "completed" and first.text.format.type == "json_schema"
    check(first.output_text)
    # The next turn has no schema and continues from the state.
    free = client.responses.create(
        model="smollm2", input="What was its name?", previous_response_id=first.id, max_output_tokens=8, temperature=0
    )
    assert free.text.format.type == "text" and not free.output_text.startswith("{")
    assert free.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1
    with client.responses.stream(
        model="smollm2", input="Another one.", previous_response_id=free.id, text=text, max_output_tokens=300
    ) as events:
        check("".join(event.delta for event in events if event.type == "response.output_text.delta"))


def test_scores_are_the_models_own(client):
    options = {"model": "smollm2", "messages": ASK, "temperature": 0, "logprobs": True, "top_logprobs": 5}
    free = client.chat.completions.create(max_tokens=1, **options).choices[0].logprobs.content[0]
    held = client.chat.completions.create(max_tokens=300, response_format=FORMAT, **options).choices[0].logprobs.content
    assert held[0].top_logprobs == free.top_logprobs
    assert held[0].token.startswith("{") and held[0].logprob < free.logprob


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": None}, "name"),
        ({"name": "an animal"}, "name"),
        ({"name": "a" * 65}, "name"),
        ({"strict": "yes"}, "strict"),
        ({"schema": None}, "schema"),
        ({"schema": []}, "schema"),
        ({"schema": {"type": "animal"}}, "schema"),
        ({"schema": {"type": "string", "pattern": "(((("}}, "schema"),
        ({"schema": {"type": "string", "format": 5}}, "schema"),
        ({"schema": {"$ref": "#/$defs/none"}}, "schema"),
        ({"schema": {"type": "array", "contains": {"type": "null"}}}, "schema"),
        ({"schema": {"type": "object", "required": ["a"], "additionalProperties": False}}, "schema"),
        ({"schema": {"type": "string", "pattern": "^(?!a)"}}, "schema"),
        ({"schema": {"type": "string", "minLength": 10**9}}, "schema"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_wrong_is_said(client, change, param):
    named = {key: value for key, value in {**NAMED, **change}.items() if value is not None}
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(
            model="smollm2", messages=ASK, response_format={"type": "json_schema", "json_schema": named}
        )
    assert error.value.param == "response_format.json_schema." + param and "\n" not in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="smollm2", input="a", text={"format": {"type": "json_schema", **named}})
    assert error.value.param == "text.format." + param


CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer", "maximum": 9}}}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "good": {"type": "boolean"}}, "required": ["good"]}


def sized(limits):
    return {"type": "object", "properties": {"it": limits}, "required": ["it"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a", "not among them"]},
        sized({"type": "string", "pattern": '^"[a-z ]{3,8}"$'}),
        sized({"type": "string", "pattern": "^[a-z]+\\\\\\\\[a-z]+$", "maxLength": 12}),
        sized({"type": "string", "pattern": "^[A-Z][a-z]*\\n?[^a-z]$", "minLength": 3, "maxLength": 9}),
        sized({"type": ["string", "null"], "pattern": "^é+.$", "maxLength": 5}),
        sized({"type": "array", "items": {"type": "string", "maxLength": 9}, "uniqueItems": True, "minItems": 2, "maxItems": 5}),
        sized({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 3}),
        sized({"type": "integer"}),
        {"oneOf": [CAT, DOG], "discriminator": {"propertyName": "kind"}},
        {"minimum": 7},
    ],
    ids=range(10),
)
def test_drawn_answers_fit(client, schema):
    """The model would write something else, and at this temperature nothing twice."""
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    reply = client.chat.completions.create(
        model="smollm2", messages=ASK, response_format=form, max_tokens=150, temperature=1.5, n=4, seed=1
    )
    ended = [choice.message.content for choice in reply.choices if choice.finish_reason == "stop"]
    assert ended
    for text in ended:
        value = json.loads(text)
        jsonschema.validate(value, schema)
        assert text == json.dumps(value, ensure_ascii=False) or any(c in text for c in ".eE\\")  # as Python writes it


class Cat(pydantic.BaseModel):
    kind: typing.Literal["cat"] = "cat"
    lives: int


class Dog(pydantic.BaseModel):
    kind: typing.Literal["dog"]
    tricks: set[Kind]


class Household(pydantic.BaseModel):
    pet: Cat | Dog = pydantic.Field(discriminator="kind")
    names: frozenset[typing.Annotated[str, pydantic.Field(pattern="^[a-z]+$", max_length=8)]] = pydantic.Field(max_length=3)
    born: datetime.date


def test_discriminated_unions_and_sets_are_parsed(client):
    for strict in (True, False):
        named = {"name": "home", "strict": strict, "schema": Household.model_json_schema()}
        reply = client.chat.completions.create(
            model="smollm2", messages=ASK, response_format={"type": "json_schema", "json_schema": named}, max_tokens=200,
            n=4, temperature=1.2, seed=2,
        )  # fmt: skip
        ended = [choice.message.content for choice in reply.choices if choice.finish_reason == "stop"]
        assert ended
        for text in ended:
            home = Household.model_validate_json(text)
            assert len(json.loads(text)["names"]) == len(home.names)


# Small schemas with large grammars are refused, or compiled so fast that others can wait.
@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(a{1000}){1000}"},
        {"type": "string", "pattern": "((a?){99}b?){99}$"},
        {"type": "string", "pattern": "^(" + "(" * 100 + "a*" + ")*" * 100 + ")$"},
        {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"type": "integer"}}},
        {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 1000} for i in range(100)}},
        {"enum": [f"{i:030}" for i in range(1000)]},
        {"type": "string", "pattern": "^" + "[a-z]?" * 40 + "$"},
        {"type": "string", "pattern": "^" + "[a-z]{0,30}" * 20 + "$"},
        {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": 900 + i} for i in range(100)}},
        {"type": "integer", "minimum": -(10**18) + 7, "maximum": 10**18 - 7},
        {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 500, "maxProperties": 1000},
        {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}}] * 100},
    ],
    ids=range(12),
)
def test_schemas_that_explode(server, schema):
    named = {"name": "large", "schema": schema}
    body = {"messages": ASK, "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": named}}
    status, reply = server.post("/v1/chat/completions", body)
    assert status in (200, 400), reply
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
