"""Estimates communication and waiting of training on many GPUs, for docs/scale.md.

    python scripts/scale_table.py PROGRAM [--tokens 131072] [--gpus 8,1000]

The models have 24 layers of width 2,048 (16 heads, 32,000 tokens), one per mechanism; each GPU has --tokens tokens of one
sequence. Sizes come from the program (`cortado describe --json`). The rest is arithmetic for this machine: 990 TFLOP/s in
bfloat16, of which 40 % are reached, 450 GB/s to the 8 GPUs of one machine, 50 GB/s to others."""

import argparse
import json
import pathlib
import subprocess
import tempfile

FLOPS, REACHED, NEAR, FAR, HOUSE = 990e12, 0.4, 450e9, 50e9, 8
LAYERS = 24
MIXERS = {"latte": {"latents": 128}, "macchiato": {}, "gla": {}, "gated_delta_net": {}, "mamba2": {}, "blurry_window": {"slots": 129, "period": 258},
          "rwkv4": {}, "sliding_window": {}, "softmax": {}}  # fmt: skip
# Mechanisms whose states compose, with the share of a layer's time that it takes; composition is used up to 1.5 times that
# share (mechanisms/mixer.h). Rings are only sent to the next process.
TIME = {"latte": 1 / 6, "macchiato": 1 / 6, "gla": 1 / 6, "gated_delta_net": 1 / 3, "mamba2": 1 / 6, "sliding_window": 0}
WINDOWS = {"macchiato", "sliding_window"}


def compositions(mixer, model):
    """Returns the bytes of a composition (decay and state), and of a ring. The decay is at most as large as the state."""
    state = model.at("state_bytes", 0)
    if mixer not in WINDOWS:
        return (2 if mixer == "gated_delta_net" else 1) * state, 0
    scans = Model(model.program, mixer, {**MIXERS[mixer], "window": 1}).at("state_bytes", 0)
    return scans, state - scans


class Model:
    """The program's counts for one mechanism's model. Interpolates and extrapolates linearly between depths, because everything
    here is linear in the depth, or constant from 131,072 tokens on."""

    def __init__(self, program, mixer, settings):
        config = {"vocabulary": 32000, "dim": 2048, "heads": 16, "layers": LAYERS, "mixer": {"mixer": mixer, **settings}, "positions": "rotary"}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.json"
            path.write_text(json.dumps(config))
            done = subprocess.run([program, "describe", path, "--json"], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        self.program, self.parameters = program, found["parameters"]
        self.depths = found["depths"][-2:]

    def at(self, key, tokens):
        low, high = self.depths
        slope = (high[key] - low[key]) / (high["tokens"] - low["tokens"])
        return high[key] + slope * (tokens - high["tokens"])


def seconds(value):
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.1f} s"


def size(count):
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 else f"{count / 2**20:,.1f} MiB"


def main():
    parser = argparse.ArgumentParser(description="What training would send and wait for on many GPUs, on paper.")
    parser.add_argument("program")
    parser.add_argument("--tokens", type=int, default=131072, help="tokens per GPU")
    parser.add_argument("--gpus", type=lambda text: [int(it) for it in text.split(",")], default=[8, 1000])
    options = parser.parse_args()
    models = {mixer: Model(options.program, mixer, settings) for mixer, settings in MIXERS.items()}
    for count in options.gpus:
        link = NEAR if count <= HOUSE else FAR
        whole = options.tokens * count
        print(f"\n{count:,} GPUs, a sequence of {whole:,} tokens, {link / 1e9:.0f} GB/s:\n")
        print("| mixer | compute | gradients | all-reduce takes | largest state | state is | its transfer takes | overhead |")
        print("|---|--:|--:|--:|--:|---|--:|--:|")
        for mixer in MIXERS:
            model = models[mixer]
            state = model.at("state_bytes", whole - options.tokens)
            compute = 3 * model.at("flops_per_token", whole / 2) * options.tokens / (FLOPS * REACHED)  # the mean depth
            gradients = 2 * (count - 1) / count * 4 * model.parameters
            row, time = (count - 1) / LAYERS, TIME.get(mixer)
            if time is not None and row > 1.5 * time:
                composed, ring = compositions(mixer, model)
                way = f"joined | {seconds(2 * ((count - 1) * composed + ring) / link)} | {100 * time:,.0f} %"
            else:
                way = f"handed on | {seconds(2 * state / link)} | {100 * row:,.0f} %"
            print(f"| `{mixer}` | {seconds(compute)} | {size(4 * model.parameters)} | {seconds(gradients / link)} | {size(state)} | {way} |")


if __name__ == "__main__":
    main()
