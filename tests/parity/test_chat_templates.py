"""Chat templates against jinja2, called as transformers calls it: equal texts or equal refusals, and marks in messages that stay text.

The templates of many models come with llama-cpp-python's source package; scripts/fetch_chat_templates.sh fetches them.
"""

import functools
import json
import pathlib
import re

import pytest
import torch
from chat_templates import LLAMA32, TEMPLATES
from conversations import CONVERSATIONS, says
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers.utils.chat_template_utils import render_jinja_template

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "chat-templates"
SOURCES = {**TEMPLATES, "llama3.2": LLAMA32} | {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}
OWN = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module", name="ours")
def fixture_ours(ops, build):
    torch.classes.load_library(str(build / "lib" / "libcortado.so"))
    return torch.classes.cortado.Tokenizer


def expected(source, messages, more):
    """Returns ("text", ...) or ("error", ...)."""
    try:
        return "text", render_jinja_template([messages], chat_template=source, **OWN, **more)[0][0]
    except Exception as error:  # whatever a template raises: jinja2's errors, Python's TypeError, ...
        return "error", f"{type(error).__name__}: {error}"


def with_thoughts(message):
    """As transformers does."""
    thoughts = message.get("reasoning_content")
    return message if thoughts is None else {"thinking": thoughts, **message}


@pytest.mark.parametrize("name", SOURCES)
def test_they_write_what_transformers_writes(ours, name):
    source = SOURCES[name]
    for title, (messages, more) in CONVERSATIONS.items():
        if "continue_final_message" in more:
            continue  # below
        more = {"add_generation_prompt": False} | more
        given = {"messages": [with_thoughts(it) for it in messages], "tools": None, "documents": None, **more}
        reply = json.loads(ours.render(json.dumps({"template": source, "given": given, "written": OWN})))
        kind, text = expected(source, messages, more)
        assert ("text" in reply) == (kind == "text"), (title, text, reply)
        if kind == "text":
            assert reply["text"] == text, title
        elif text.startswith("TemplateError: "):  # raise_exception's own words
            assert reply["error"] == re.sub(r"[\x00-\x1f]", " ", text.removeprefix("TemplateError: ")), title


@functools.cache
def byte_tokenizer():
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


def marks_of(source):
    """The marks that a template writes, and some that it does not."""
    found = re.findall(r"<[|｜]?[\w/｜▁|.:-]{1,40}[|｜]?>|\[/?[A-Z_]{3,30}\]", source)
    return sorted({*found, "<|im_start|>", "<|im_end|>", "<s>", "</s>"})


def folder_with(source, folder):
    """A byte-level tokenizer whose special tokens are the template's marks."""
    tokenizer = Tokenizer.from_str(byte_tokenizer())
    tokenizer.add_special_tokens(marks_of(source))
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **OWN}))
    return folder


@pytest.mark.parametrize("name", SOURCES)
def test_marks_in_messages_are_text(ours, tmp_path, name):
    """Messages that hold all marks give the same special tokens, in the same order, as harmless ones."""
    source = SOURCES[name]
    tokenizer = ours(str(folder_with(source, tmp_path)), "huggingface")
    marks = set(range(256, tokenizer.vocabulary()))

    def structure(text, with_system, tools):
        talk = [says("system", "a" + text)] * with_system + [says("user", "b" + text), says("assistant", "c"), says("user", "d" + text)]
        if tools:
            call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"x": "e" + text}}}
            talk[-1:] = [says("assistant", "", tool_calls=[call]), says("tool", "g" + text, tool_call_id="call00001", name="f")]
        more = {"tools": [{"type": "function", "function": {"name": "f", "description": "h" + text, "parameters": {"type": "object", "properties": {}}}}]}
        tokens = tokenizer.encode_chat(json.dumps({"messages": talk, **(more if tools else {}), "kwargs": {"functions": "", "datetime": ""}}))
        return [token for token in tokens if token in marks]

    hostile = " " + " ".join(marks_of(source)) + " "
    done = 0
    for with_system in (0, 1):
        for tools in (False, True):
            try:
                tame = structure(" ", with_system, tools)
            except RuntimeError:  # the template refuses such a conversation
                continue
            assert structure(hostile, with_system, tools) == tame, (with_system, tools)
            done += 1
    assert done > 0


@pytest.mark.parametrize("name", SOURCES)
def test_continued_answers(ours, tmp_path, name):
    source = SOURCES[name]
    tokenizer = ours(str(folder_with(source, tmp_path)), "huggingface")
    for answer in ("It is ", "It is", " 4"):
        messages = [says("user", "What is 2+2?"), says("assistant", answer)]
        kind, text = expected(source, messages, {"continue_final_message": True, "add_generation_prompt": False})
        asked = json.dumps({"messages": messages, "continue_final_message": True})
        if kind == "text":
            assert tokenizer.chat(asked) == text
        else:
            with pytest.raises(RuntimeError, match="chat"):
                tokenizer.chat(asked)
