"""CortadoTokenizer tokenizes like the program and the tokenizers library; changes to it are kept or refused."""

import json

import pytest
import tokenizers
import torch
import transformers

from cortado.transformers import CortadoTokenizer

TEXTS = ["x</s>y", "x</s> y", "</s>y", " x", "the king</s>xy <s>", "<s>the queen and the king</s></s> zz ünï", ""]


def byte_pairs(scheme):
    """A tokenizer of the tokenizers library, as Llama's are, and its file."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"])
    made.train_from_iterator(["x y z the king and the queen xy yx y zz"] * 5, trainer)
    file = json.loads(made.to_str())
    vocabulary = file["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    decoders = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]  # fmt: skip
    file["decoder"] = {"type": "Sequence", "decoders": decoders}
    return tokenizers.Tokenizer.from_str(json.dumps(file)), file


def imported(folder, scheme="first"):
    """(the library's, ours in transformers)"""
    theirs, file = byte_pairs(scheme)
    (folder / "tokenizer.json").write_text(json.dumps(file))
    roles = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))
    size = len(file["model"]["vocab"])
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": size, "bos_token_id": 1, "eos_token_id": 2}))
    run = folder / "run"
    torch.classes.cortado.Tokenizer(str(folder), "huggingface").save(str(run / "tokenizer"))
    return theirs, CortadoTokenizer.from_pretrained(run)


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_text_is_read_as_a_whole(tmp_path, scheme):
    """Also after a special token: with "first" no space is put before the text that follows."""
    theirs, ours = imported(tmp_path, scheme)
    for text in TEXTS:
        expected = theirs.encode(text, add_special_tokens=False).ids
        assert ours(text, add_special_tokens=False)["input_ids"] == ours.own.encode(text) == expected, text
        assert ours.convert_tokens_to_ids(ours.tokenize(text)) == expected
    together = ours(TEXTS[:4], add_special_tokens=False)["input_ids"]
    assert together == [theirs.encode(text, add_special_tokens=False).ids for text in TEXTS[:4]]
    assert ours.tokenize("x", pair="y", add_special_tokens=True) == ours.convert_ids_to_tokens(ours("x", "y")["input_ids"])


def test_what_is_changed_is_kept(tmp_path):
    _, ours = imported(tmp_path)
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert ours.add_tokens(["</s>"]) == 0 and ours.add_special_tokens({"pad_token": "<unk>"}) == 0
    ours.eos_token, ours.chat_template, ours.padding_side, ours.model_max_length = "<s>", template, "left", 77
    ours.bos_token = None
    ours.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": "cortado"}))
    for again in (CortadoTokenizer.from_pretrained(tmp_path / "saved"), transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")):
        assert isinstance(again, CortadoTokenizer)
        for name in ("pad_token", "eos_token", "bos_token", "chat_template", "padding_side", "model_max_length"):
            assert getattr(again, name) == getattr(ours, name), name
        assert again.get_vocab() == ours.get_vocab() and again("x</s>y")["input_ids"] == ours("x</s>y")["input_ids"]
    given = CortadoTokenizer.from_pretrained(tmp_path / "saved", pad_token="</s>", padding_side="right", use_fast=True, revision=None)
    assert given.pad_token == "</s>" and given.padding_side == "right" and given.eos_token == "<s>"


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_the_fast_tokenizer_is_the_same(tmp_path, scheme):
    """AutoTokenizer opens a run's byte pairs as transformers' own tokenizer, which also tells where tokens lie."""
    _, ours = imported(tmp_path, scheme)
    (tmp_path / "run" / "config.json").write_text(json.dumps({"model_type": "cortado"}))
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    assert fast.is_fast and not isinstance(fast, CortadoTokenizer)
    for text in TEXTS:
        expected = ours(text)["input_ids"]
        assert fast(text)["input_ids"] == expected and fast.decode(expected) == ours.decode(expected), text
    assert fast(TEXTS[:3], padding=True)["input_ids"] == ours(TEXTS[:3], padding=True)["input_ids"]
    for name in ("pad_token_id", "eos_token_id", "bos_token_id", "unk_token_id", "chat_template", "padding_side"):
        assert getattr(fast, name) == getattr(ours, name), name
    assert fast("the king", add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"][-1][1] == 8
    given = transformers.AutoTokenizer.from_pretrained(tmp_path / "run", padding_side="left", pad_token="<unk>")
    assert given.padding_side == "left" and given.pad_token == "<unk>"
    given.save_pretrained(tmp_path / "saved")
    again = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    assert again(TEXTS[0])["input_ids"] == fast(TEXTS[0])["input_ids"] and again.pad_token == "<unk>"


REFUSED = [
    (lambda it, _: it.add_tokens(["<new>"]), ValueError, "no token '<new>'"),
    (lambda it, _: it.add_tokens([next(piece for piece, number in it.get_vocab().items() if it.own.encode(piece) != [number])]), ValueError, "read as one"),
    (lambda it, _: it.add_special_tokens({"pad_token": "<pad>"}), ValueError, "no token '<pad>'"),
    (lambda it, _: setattr(it, "pad_token", "<pad>"), ValueError, "no token '<pad>'"),
    (lambda it, _: it("x", max_lenght=3), TypeError, "max_lenght"),
    (lambda it, _: it.decode([3], skip_special_token=True), TypeError, "skip_special_token"),
    (lambda it, _: it("x", split_special_tokens=True), ValueError, "split_special_tokens"),
    (lambda it, folder: it.save_pretrained(folder / "saved", push_to_hub=True), ValueError, "push_to_hub"),
    (lambda _, folder: CortadoTokenizer.from_pretrained(folder / "run", pad_tokens="x"), TypeError, "pad_tokens"),
    (lambda _, folder: CortadoTokenizer.from_pretrained(folder / "run", pad_token="<pad>"), ValueError, "no token '<pad>'"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_kept_is_refused(tmp_path, number):
    call, kind, word = REFUSED[number]
    _, ours = imported(tmp_path)
    with pytest.raises(kind, match=word) as caught:
        call(ours, tmp_path)
    assert "\n" not in str(caught.value)
