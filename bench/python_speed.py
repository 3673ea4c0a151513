"""What Python costs: an operator's function and a layer's call against the operator alone, and a training step against the
program's.

    python bench/python_speed.py [--steps 40] [--rounds 3]

One thread, medians of the rounds; of training both sides in turns. Prints markdown (docs/python.md)."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import cortado  # noqa: E402

CONFIG = {"dim": 128, "heads": 4, "layers": 4, "positions": "rotary", "context": 256, "feed_forward": {"type": "swiglu", "dim": 344},
          "training": {"batch": 12, "context": 256, "warmup": 5, "evaluate_every": 1000, "evaluate_batches": 1, "log_every": 5,
                       "tokenizer": "char", "dtype": "float32"}}  # fmt: skip


def microseconds(call, rounds):
    """Returns the median of `rounds` means, each over about a fifth of a second."""
    call()
    start = time.perf_counter()
    call()
    count = max(1, int(0.2 / (time.perf_counter() - start)))
    found = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(found)


def calls(rounds):
    print("| tokens | `torch.ops.cortado.gated_scan` | `cortado.ops.gated_scan` | `cortado.nn.GLA`, width 256 | five products and the scan by hand |")
    print("|---|---|---|---|---|")
    layer = cortado.nn.GLA(256, heads=4)
    with torch.no_grad():
        for tokens in (1, 16, 256, 2048):
            q, k, v, g = (torch.randn(1, tokens, 4, 64) for _ in range(4))
            g = -g.abs()
            x = torch.randn(1, tokens, 256)
            state = layer.zero_state(1)
            weights = [torch.randn(256, 256) for _ in range(5)]

            def by_hand(q=q, k=k, v=v, g=g, x=x, weights=weights):
                for weight in weights:
                    torch.nn.functional.linear(x, weight)
                return torch.ops.cortado.gated_scan(q, k, v, g)

            row = [microseconds(call, rounds) for call in (
                lambda q=q, k=k, v=v, g=g: torch.ops.cortado.gated_scan(q, k, v, g),
                lambda q=q, k=k, v=v, g=g: cortado.ops.gated_scan(q, k, v, g),
                lambda x=x, state=state: layer(x, state), by_hand)]  # fmt: skip
            print(f"| {tokens:,} | " + " | ".join(f"{it:,.1f} us" for it in row) + " |")


def program_speed(folder, config, steps):
    """Returns the program's tokens per second, the median of its log."""
    (folder / "config.json").write_text(json.dumps(config))
    out = folder / "run"
    subprocess.run([str(cortado.program()), "train", str(folder / "config.json"), "--data", str(ROOT / "data/tinyshakespeare.txt"),
                    "--steps", str(steps), "--out", str(out), "--threads", "1", "--overwrite"], check=True, capture_output=True)  # fmt: skip
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.median([it["tokens_per_second"] for it in lines if "tokens_per_second" in it][1:])


def python_speed(folder, steps):
    """Returns the tokens per second of a loop in Python over the same model."""
    model = cortado.load(folder / "run").train()
    optimizer = torch.optim.AdamW(cortado.parameter_groups(model, 0.1), lr=1e-3, betas=(0.9, 0.99))
    text = (ROOT / "data/tinyshakespeare.txt").read_text()
    tokens = torch.tensor(model.tokenizer.encode(text[:400_000]))
    found = []
    for _ in range(steps):
        start = time.perf_counter()
        places = torch.randint(len(tokens) - 257, (12,))
        rows = torch.stack([tokens[place : place + 257] for place in places])
        loss = model.loss(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(12 * 256 / (time.perf_counter() - start))
    return statistics.median(found[2:])


def training(steps, rounds):
    print("\n| mixer | program | Python | Python / program |")
    print("|---|---|---|---|")
    for mixer in ({"mixer": "macchiato", "latents": 64, "window": 65}, {"mixer": "gla"}, {"mixer": "softmax"}):
        both = []
        with tempfile.TemporaryDirectory() as name:
            for _ in range(rounds):
                folder = pathlib.Path(name)
                both.append((program_speed(folder, {**CONFIG, "mixer": mixer}, steps), python_speed(folder, steps)))
        program, python = (statistics.median(side) for side in zip(*both, strict=True))
        print(f"| `{mixer['mixer']}` | {program:,.0f} tokens/s | {python:,.0f} tokens/s | {python / program:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    calls(options.rounds)
    training(options.steps, options.rounds)


if __name__ == "__main__":
    main()
