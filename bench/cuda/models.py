#!/usr/bin/env python3
"""A training step of whole models on this GPU, beside a GPT with PyTorch's flash attention: bf16 autocast, AdamW.

    python bench/cuda/models.py [--json FILE] [--only NAME,...] [--profile]

Prints medians of milliseconds per step. CORTADO_BUILD names the folder with lib/, else build/release. --profile prints
where the GPU's time goes."""

import argparse
import json
import pathlib
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
VOCABULARY = 50304
# name -> (dim, layers, heads, rows, tokens)
SIZES = {"(12, 768, 12), 8 x 4,096": (768, 12, 12, 8, 4096), "(12, 768, 12), 2 x 16,384": (768, 12, 12, 2, 16384)}
MIXERS = {"macchiato": {"mixer": "macchiato", "latents": 768, "source": "rg_lru", "window": 129},
          "macchiato, convolution": {"mixer": "macchiato", "latents": 768, "source": "conv", "window": 129},
          "latte": {"mixer": "latte", "latents": 768}, "gla": {"mixer": "gla"}, "mamba2": {"mixer": "mamba2"},
          "gated_delta_net": {"mixer": "gated_delta_net"}, "sliding_window": {"mixer": "sliding_window", "window": 128},
          "softmax": {"mixer": "softmax"}, "kda": {"mixer": "kda"}, "mamba": {"mixer": "mamba"},
          "blurry_window": {"mixer": "blurry_window", "slots": 63, "period": 126}}  # fmt: skip


class Attention(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.o = heads, torch.nn.Linear(dim, 3 * dim, bias=False), torch.nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(dim) for _ in range(2))
        self.attention, self.gate = Attention(dim, heads), torch.nn.Linear(dim, 2 * hidden(dim), bias=False)
        self.down = torch.nn.Linear(hidden(dim), dim, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        a, b = self.gate(self.norms[1](x)).chunk(2, -1)
        return x + self.down(torch.nn.functional.silu(a) * b)


class Gpt(torch.nn.Module):
    """A GPT in plain PyTorch with the models' RMSNorm, SwiGLU and tied embeddings."""

    def __init__(self, dim, layers, heads, tokens):
        super().__init__()
        self.embedding, self.places = torch.nn.Embedding(VOCABULARY, dim), torch.nn.Embedding(tokens, dim)
        self.blocks, self.norm = torch.nn.ModuleList(Block(dim, heads) for _ in range(layers)), torch.nn.RMSNorm(dim)

    def loss(self, tokens, targets):
        x = self.embedding(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = torch.nn.functional.linear(self.norm(x), self.embedding.weight)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def hidden(dim):
    return dim * 8 // 3 // 64 * 64


def config(mixer, dim, layers, heads, tokens):
    return {"name": "bench", "dim": dim, "heads": heads, "layers": layers, "mixer": MIXERS[mixer], "norm": "rms", "context": tokens,
            "feed_forward": {"type": "swiglu", "dim": hidden(dim)}, "embedding": {"tied": True}, "dropout": 0.0, "vocabulary": VOCABULARY}


def make(name, dim, layers, heads, tokens):
    if name == "GPT (PyTorch)":
        return Gpt(dim, layers, heads, tokens).cuda()
    from cortado.models import LanguageModel

    return LanguageModel(config(name, dim, layers, heads, tokens), device="cuda")


def median_ms(step, least=4, seconds=1.0):
    for _ in range(2):
        step()
    times, end = [], time.monotonic() + seconds
    while len(times) < least or time.monotonic() < end:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)[len(times) // 2]


def kernels_of(step, most=25):
    """Returns (name, ms, launches) of the kernels of a step, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    found = [(event.key[:70], round(event.self_device_time_total / 1e3, 3), event.count) for event in profile.key_averages()]
    return sorted(found, key=lambda entry: -entry[1])[:most]


def measure(name, size, profile):
    dim, layers, heads, rows, tokens = SIZES[size]
    torch.manual_seed(1)
    model = make(name, dim, layers, heads, tokens)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    text, targets = (torch.randint(VOCABULARY, (rows, tokens), device="cuda") for _ in range(2))

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.loss(text, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    torch.cuda.reset_peak_memory_stats()
    row = {"model": name, "size": size, "parameters": sum(x.numel() for x in model.parameters()), "step_ms": median_ms(step),
           "tokens": rows * tokens, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}  # fmt: skip
    if profile:
        row["kernels"] = kernels_of(step)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=["GPT (PyTorch)", *MIXERS])
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("[bench-cuda] there is no GPU here")
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": []}
    for size in SIZES:
        for name in chosen.only:
            try:
                row = measure(name, size, chosen.profile)
            except Exception as problem:
                row = {"model": name, "size": size, "failed": str(problem).splitlines()[0][:300]}
            torch.cuda.empty_cache()
            found["rows"].append(row)
            print({key: round(x, 3) if isinstance(x, float) else x for key, x in row.items() if key != "kernels"}, flush=True)
            for entry in row.get("kernels", [])[:12]:
                print("   ", *entry, flush=True)
            if chosen.json:
                chosen.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
