"""RWKV's World tokenizer against the one of the `rwkv` package, which brings the vocabulary: folders, GGUF files, saved and exported."""

import ast
import importlib.util
import json
import pathlib
import shutil

import gguf
import pytest
import torch
import transformers
from gguf_files import write_vocabulary
from test_tokenizers import assigned, fixture_lines, fixture_open_tokenizer, fixture_open_vocabulary, text_of  # noqa: F401

PACKAGE = pathlib.Path(next(iter(importlib.util.find_spec("rwkv").submodule_search_locations)))
FILE = "rwkv_vocab_v20230424.txt"
END = "<|rwkv_tokenizer_end_of_text|>"


@pytest.fixture(scope="module")
def theirs():
    from rwkv.rwkv_tokenizer import TRIE_TOKENIZER

    return TRIE_TOKENIZER(str(PACKAGE / FILE))


@pytest.fixture
def folder(tmp_path):
    """A folder with the vocabulary, as those of flash-linear-attention's models."""
    (tmp_path / "model").mkdir()
    shutil.copy(PACKAGE / FILE, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def ours(folder, open_tokenizer):
    return open_tokenizer(folder, "huggingface")


@pytest.fixture
def odd(lines):
    """Lines without the text of the special token."""
    return [line for line in lines if "<s>" not in line and END not in line]


def metadata(theirs, rows):
    """The metadata as llama.cpp's converter writes them."""
    tokens = [repr(theirs.idx2token[i])[2:-1] if i else "<s>" for i in range(len(theirs.idx2token) + 1)]
    types = [gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * len(theirs.idx2token)
    padding = rows - len(tokens)
    tokens += [f"[PAD{i}]" for i in range(len(tokens), rows)]
    return {"model": "rwkv", "tokens": tokens, "types": types + [gguf.TokenType.UNUSED] * padding, "begin": 0, "end": 0}


def check(ours, theirs, lines):
    wrong = [line for line, tokens in zip(lines, ours.encode(lines)) if tokens != theirs.encode(line)]
    assert not wrong, f"{len(wrong)} lines differ, the first: {wrong[0]!r}"
    for line in lines[::4]:
        assert text_of(ours, theirs.encode(line)) == line


def test_a_folder(ours, theirs, odd, open_tokenizer, tmp_path):
    check(ours, theirs, odd)
    assert ours.vocabulary() == 65530 and ours.special() == {"bos": 0, "eos": 0, "unk": -1, "pad": -1} and ours.stops() == [0]
    assert ours.encode([f"a{END}\n\n\n"]) == [[*theirs.encode("a"), 0, *theirs.encode("\n\n\n")]]
    assert ours.encode_document("a b") == theirs.encode("a b") and text_of(ours, [0, 33], True) == " "
    ours.save(str(tmp_path / "saved"))
    check(open_tokenizer(tmp_path / "saved"), theirs, odd[::20])
    assert not ours.export_to(str(tmp_path))  # no file of Hugging Face's says it


def test_every_token(ours, theirs):
    """One by one, bytes that are no characters included."""
    for token, bytes_ in theirs.idx2token.items():
        assert bytes(ours.decode([token], False).numpy()) == bytes_


def test_what_lies_beside_the_vocabulary(folder, theirs, open_tokenizer):
    """fla's models of RWKV-7 end an answer with two line breaks, which stay ordinary text."""
    added = {"0": {"content": "<s>", "special": True, "normalized": False}}
    config = {"added_tokens_decoder": added, "bos_token": "<s>", "eos_token": "\n\n", "tokenizer_class": "RwkvTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ours = open_tokenizer(folder, "huggingface")
    assert ours.special()["bos"] == 0 and ours.special()["eos"] == 261 and ours.stops() == [261]
    assert ours.encode(["<s>User: a.\n\nAssistant:"]) == [[0, *theirs.encode("User: a.\n\nAssistant:")]]
    assert text_of(ours, [261], True) == "\n\n"


def test_a_gguf_file(theirs, odd, open_vocabulary):
    ours = open_vocabulary(metadata(theirs, 65536))
    check(ours, theirs, odd)
    assert ours.vocabulary() == 65536 and ours.encode(["<s>\n\n<s>"]) == [[0, 261, 0]] and ours.special()["eos"] == 0


def test_conversations(theirs, open_vocabulary):
    """Answers end with two line breaks, which llama.cpp's converter names as the end of a turn."""
    from chat_templates import TEMPLATES

    ours = open_vocabulary({**metadata(theirs, 65536), "end_turn": 261, "chat_template": TEMPLATES["rwkv"]})
    asked = json.dumps({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Why? "}]})
    assert ours.stops() == [0, 261] and ours.chat(asked) == "<s>System: Be brief.\n\nUser: Why?\n\nAssistant:"


def test_a_written_gguf_file(folder, theirs, odd, cortado, open_tokenizer, tmp_path):
    """The same metadata as the converter's, but for the name of the special token."""
    sizes = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=65536, **sizes)).save_pretrained(folder)
    assert cortado("import", folder, "--out", tmp_path / "run").returncode == 0
    done = cortado("export", tmp_path / "run", "--gguf", tmp_path / "model.gguf")
    assert done.returncode == 0 and "without a tokenizer" not in done.stdout, (done.stdout, done.stderr)
    reader, wanted = gguf.GGUFReader(tmp_path / "model.gguf"), metadata(theirs, 65536)
    found = {key: reader.get_field(f"tokenizer.ggml.{key}").contents() for key in ("model", "tokens", "token_type", "bos_token_id", "add_bos_token")}
    assert found == {"model": "rwkv", "tokens": [END, *wanted["tokens"][1:]], "token_type": wanted["types"], "bos_token_id": 0, "add_bos_token": False}
    check(open_tokenizer(tmp_path / "model.gguf", "gguf"), theirs, odd[::20])


def small(tmp_path, *more):
    """A vocabulary of bytes, and of these lines."""
    lines = [f"{byte + 1} {bytes([byte])!r} 1" for byte in range(256)]
    (tmp_path / FILE).write_text("\n".join([*lines, *more]) + "\n")
    return tmp_path


def test_escapes(open_tokenizer, tmp_path):
    literals = ["'\\u2581a'", '"it\'s"', "b'\\xe2\\x96'", "'\\x85'", "'a\\\\'", "'\U0001f600'", "'\\U0001f601'", "' a '"]
    bytes_ = [x.encode() if isinstance(x, str) else x for x in map(ast.literal_eval, literals)]
    small(tmp_path, *(f"{257 + i} {literal} {len(bytes_[i])}" for i, literal in enumerate(literals)))
    ours = open_tokenizer(tmp_path, "huggingface")
    assert [bytes(ours.decode([257 + i], False).numpy()) for i in range(len(literals))] == bytes_
    assert ours.encode(["\u2581a\u2581b it's\x85\x85 a  a"]) == [[257, 259, 0x81 + 1, 99, 33, 258, 260, 260, 264, 33, 98]]


@pytest.mark.parametrize(
    ("line", "words"),
    [("257 abc 3", "line 257: expected an id"), ("257 'abc' 4", "line 257"), ("257 'ab\\q' 4", "line 257"), ("x 'ab' 2", "line 257"),
     ("257 '' 0", "line 257"), ("7 'ab' 2", "two tokens have the id 7"), ("257 'a' 1", "tokens 98 and 257 are equal")],
)  # fmt: skip
def test_damaged_vocabularies(line, words, open_tokenizer, tmp_path):
    with pytest.raises(RuntimeError, match=words):
        open_tokenizer(small(tmp_path, line), "huggingface")


def test_a_byte_without_a_token(open_tokenizer, open_vocabulary, tmp_path):
    (tmp_path / FILE).write_text("1 'a' 1\n")
    with pytest.raises(RuntimeError, match="no token for byte 0"):
        open_tokenizer(tmp_path, "huggingface")
    with pytest.raises(RuntimeError, match="no token for byte 0"):
        open_vocabulary({"model": "rwkv", "tokens": ["<s>", "a"], "types": [3, 1]})
