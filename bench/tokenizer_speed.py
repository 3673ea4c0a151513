"""Compares the speed of our tokenizers with the `tokenizers` package's, on one thread: millions of characters and
tokens per second.

    python bench/tokenizer_speed.py [TOKENIZER_JSON_FOLDER]

Without a folder: a byte-level vocabulary of 8,000 learnt from Tiny Shakespeare."""

import os
import pathlib
import sys
import tempfile
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("CORTADO_BUILD", ROOT / "build" / "release"))


def learnt(folder, text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet))
    tokenizer.save(f"{folder}/tokenizer.json")


def best_of(run, rounds=5):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return result, min(times)


def main():
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    text = (ROOT / "data/tinyshakespeare.txt").read_text()
    with tempfile.TemporaryDirectory() as made:
        folder = sys.argv[1] if len(sys.argv) > 1 else made
        if folder == made:
            learnt(made, text)
        torch.ops.load_library(str(BUILD / "lib" / "libcortado_ops.so"))
        torch.classes.load_library(str(BUILD / "lib" / "libcortado.so"))
        ours = torch.classes.cortado.Tokenizer(folder, "huggingface")
        theirs = Tokenizer.from_file(f"{folder}/tokenizer.json")
    paragraphs = text.split("\n\n")
    for name, parts in (("whole text", [text]), ("paragraphs", paragraphs)):
        tokens, seconds = best_of(lambda: ours.encode(parts))
        peer, peer_seconds = best_of(lambda: [theirs.encode(part, add_special_tokens=False).ids for part in parts])
        assert tokens == peer, "the ids differ"
        count = sum(map(len, tokens))
        for who, took in (("cortado", seconds), ("tokenizers", peer_seconds)):
            print(f"{name:11} {who:11} {len(text) / took / 1e6:6.1f} M characters/s {count / took / 1e6:6.2f} M tokens/s")


main()
