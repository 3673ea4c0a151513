#!/usr/bin/env python3
"""Decoding on this GPU: milliseconds per token, called from Python and replayed as one CUDA graph.

    python bench/cuda/decode.py [--json FILE] [--mixers NAME,...] [--tokens N,...] [--rows N,...] [--profile]

Models of (12, 768, 12) with a vocabulary of 50,304 in bfloat16, behind so many tokens. The bound is reading every weight and reading
and writing every state once, at the bandwidth of a large copy. CORTADO_BUILD names the folder with lib/, else build/release. --profile
says which kernels a token takes."""

import argparse
import json
import pathlib
import sys

import torch
from models import MIXERS, ROOT, VOCABULARY, config, kernels_of
from operators import bandwidth
from steps import microseconds

sys.path.insert(0, str(ROOT / "python"))
from cortado._decoder import Decoder, tensors  # noqa: E402

LAYERS, PREFILL = 12, 65536  # tokens of all rows that are read at once


def bound_ms(model, state, copy):
    looked_up = model.embedding.weight.numel() if not model.config["embedding"]["tied"] else 0
    weights = sum(x.numel() * x.element_size() for x in model.parameters()) - looked_up * 2
    return (weights + 2 * sum(x.numel() * x.element_size() for x in tensors(state))) / copy * 1e3


def prefilled(model, rows, tokens):
    state, each = model.state(rows), max(1, PREFILL // rows)
    for begin in range(0, tokens, each):
        text = torch.randint(VOCABULARY, (rows, min(each, tokens - begin)), device="cuda")
        _, state = model.hidden(text, state)
    return state


def median_ms(work):
    return microseconds(work, 1, turns=20) / 1e3


def replayed(model, token, state):
    """Decodes as LanguageModel.generate does; None where no graph can be recorded."""
    decoder = Decoder(model, state)
    for _ in range(2):  # warm-up: the first use allocates
        decoder(token)
    return (lambda: token.copy_(decoder(token).argmax(-1, keepdim=True))) if decoder.recorded else None


@torch.no_grad()
def measure(model, name, rows, tokens, copy, profile):
    state, token = prefilled(model, rows, tokens), torch.zeros(rows, 1, dtype=torch.int64, device="cuda")

    def step(token, state):
        logits, state = model(token, state)
        return logits[:, -1].argmax(-1, keepdim=True), state

    row = {"mixer": name, "rows": rows, "tokens": tokens, "bound_ms": bound_ms(model, state, copy)}
    row["called_ms"] = median_ms(lambda: step(token, state))
    if profile:
        row["kernels"] = kernels_of(lambda: step(token, state), most=None)
    if replay := replayed(model, token, state):
        row["replayed_ms"] = median_ms(replay)
        row["of_bound"] = row["bound_ms"] / row["replayed_ms"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--mixers", type=lambda text: text.split(","), default=["macchiato", "latte", "gla", "sliding_window"])
    parser.add_argument("--tokens", type=lambda text: [int(x) for x in text.split(",")], default=[200, 10_000, 1_000_000])
    parser.add_argument("--rows", type=lambda text: [int(x) for x in text.split(",")], default=[1, 64])
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("[bench-cuda] there is no GPU here")
    from cortado.models import LanguageModel

    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy": bandwidth(), "rows": []}
    for name in chosen.mixers:
        assert name in MIXERS, name
        torch.manual_seed(1)
        model = LanguageModel(config(name, 768, LAYERS, 12, 4096), device="cuda", dtype=torch.bfloat16).eval()
        for rows in chosen.rows:
            for tokens in chosen.tokens if rows == 1 else chosen.tokens[:1]:
                found["rows"].append(measure(model, name, rows, tokens, found["copy"], chosen.profile))
                kernels = found["rows"][-1].get("kernels", [])
                print({key: round(x, 3) if isinstance(x, float) else x for key, x in found["rows"][-1].items() if key != "kernels"}, flush=True)
                if kernels:
                    print("   ", sum(count for _, _, count in kernels), "kernels,", round(sum(ms for _, ms, _ in kernels), 3), "ms", flush=True)
                if chosen.json:
                    chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
