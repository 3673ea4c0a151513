#!/usr/bin/env python3
"""The operators on this machine's GPU: medians of CUDA events over rotating inputs, forward and with backward, beside
the floor.

    python bench/cuda/operators.py [--json FILE] [--page docs/performance-cuda.md] [--only NAME,...] [--seconds S]
    ncu --set full python bench/cuda/operators.py --once --only delta_scan

The floor is the bytes in and out once, forward and backward together 15/4 of the forward's, over the bandwidth of a large copy, which is measured
first. Where flash-linear-attention is installed its operator is timed too (forward alone: its gated backward refuses some versions
of Triton). CORTADO_OPS names the library, else build/release/lib. --page writes the table into a document, between its marks."""

import argparse
import json
import os
import pathlib
import sys
import time

import torch
import torch.nn.attention

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARKS = ("<!-- table: bench/cuda/operators.py -->", "<!-- end of the table -->")


def gates(*sizes):
    return (1 - torch.rand(*sizes, device="cuda")).log() * 0.1  # never -inf


def gated(gate):
    def make(b, t, h, width):
        numbers = lambda *sizes: torch.randn(*sizes, device="cuda")
        timed = lambda: numbers(b, t, h, width).bfloat16()
        g = {"head": (b, t, h), "channel": (b, t, h, width)}.get(gate)
        return [timed(), timed(), timed(), *([gates(*g)] if g else [])]

    return make


def latte_inputs(b, t, h, width):
    return [torch.randn(b, t, h, width, device="cuda").bfloat16() for _ in range(3)]


def in_float32(kind):
    return lambda *sizes: [x.float() for x in gated(kind)(*sizes)]


def macchiato_inputs(b, t, h, width):
    return [torch.randn(b, t, h, width + (i == 0), device="cuda").bfloat16() for i in range(5)]


def elementwise_inputs(b, t, h, width):
    return [gates(b, t, h * width), torch.randn(b, t, h * width, device="cuda")]


def delta_inputs(b, t, h, width):
    q, k, v, g = gated("head")(b, t, h, width)
    return [q, torch.nn.functional.normalize(k, dim=-1), v, torch.rand(b, t, h, device="cuda"), g]


def channel_delta_inputs(b, t, h, width):
    return [*delta_inputs(b, t, h, width)[:4], gates(b, t, h, width)]


def abc_inputs(b, t, h, width):
    return [*latte_inputs(b, t, h, width), torch.randn(b, t, h, width, device="cuda").bfloat16()]


def conv_inputs(b, t, h, width):
    return [torch.randn(b, t, h * width, device="cuda").bfloat16(), torch.randn(h * width, 4, device="cuda").bfloat16()]


def slot_inputs(b, t, h, width):
    g = gates(b, t, h, width)
    return [*latte_inputs(b, t, h, width), 1 - g.exp(), g]


def softmax(backend):
    """PyTorch's attention over all earlier tokens, which latte and macchiato replace."""
    chosen = getattr(torch.nn.attention.SDPBackend, backend)

    def attention(q, k, v):
        with torch.nn.attention.sdpa_kernel(chosen):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    return attention


# name -> (inputs, operator, fla's)
OPERATORS = {
    "gated_scan, no gate": (gated(None), lambda q, k, v: OPS.gated_scan(q, k, v)[0], "linear_attn.chunk_linear_attn"),
    "gated_scan, head gate": (gated("head"), lambda q, k, v, g: OPS.gated_scan(q, k, v, g)[0], "simple_gla.chunk_simple_gla"),
    "gated_scan, channel gate": (gated("channel"), lambda q, k, v, g: OPS.gated_scan(q, k, v, g)[0], "gla.chunk_gla"),
    "latte": (latte_inputs, lambda q, k, v: OPS.latte(q, k, v)[0], None),
    "elementwise_scan": (elementwise_inputs, lambda a, b: OPS.elementwise_scan(a, b)[0], None),
    "window_attention, 128": (latte_inputs, lambda q, k, v: OPS.window_attention(q, k, v, window=128)[0], None),
    "macchiato, window 128": (macchiato_inputs, lambda *x: OPS.macchiato(*x, window=128)[0], None),
    "delta_scan, head gate": (delta_inputs, lambda q, k, v, beta, g: OPS.delta_scan(q, k, v, beta, g)[0], None),
    "softmax, flash (PyTorch)": (latte_inputs, softmax("FLASH_ATTENTION"), None),
    "softmax, cuDNN (PyTorch)": (latte_inputs, softmax("CUDNN_ATTENTION"), None),
    "gated_slot": (slot_inputs, lambda q, k, v, s, g: OPS.gated_slot(q, k, v, s, g)[0], None),
    "abc": (abc_inputs, lambda q, k, v, s: OPS.abc(q, k, v, s)[0], None),
    "delta_scan, channel gate": (channel_delta_inputs, lambda q, k, v, beta, g: OPS.delta_scan(q, k, v, beta, g)[0], None),
    "blurry_window": (latte_inputs, lambda q, k, v: OPS.blurry_window(q, k, v, slots=63, period=1024)[0], None),
    "gated_scan, head gate, float32": (in_float32("head"), lambda q, k, v, g: OPS.gated_scan(q, k, v, g)[0], None),
    "gated_scan, channel gate, float32": (in_float32("channel"), lambda q, k, v, g: OPS.gated_scan(q, k, v, g)[0], None),
    "short_conv": (conv_inputs, lambda x, w: OPS.short_conv(x, w)[0], None),
}
SHAPES = [(8, 2048, 16, 64), (8, 16384, 16, 64), (8, 16384, 16, 128), (1, 65536, 4, 64)]
# The page says from which length on these are faster than softmax.
BESIDE_SOFTMAX = ("latte", "macchiato", "blurry_window", "softmax, cuDNN")
OPS = torch.ops.cortado


def median_ms(work, sets, seconds):
    for each in sets:
        work(*each)
    torch.cuda.synchronize()
    events, end = [], time.monotonic() + seconds
    while len(events) < 3 or (len(events) < 30 and time.monotonic() < end):
        begin, behind = torch.cuda.Event(True), torch.cuda.Event(True)
        begin.record()
        work(*sets[len(events) % len(sets)])
        behind.record()
        behind.synchronize() if len(events) < 3 else None
        events.append((begin, behind))
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(behind) for begin, behind in events)[len(events) // 2]


def bandwidth():
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.numel() / median_ms(lambda: y.copy_(x), [()] * 3, 1.0) * 1e3


def peer(path):
    if not path:
        return None
    try:
        module, _, name = path.rpartition(".")
        return getattr(__import__(f"fla.ops.{module}", fromlist=[name]), name)
    except Exception:
        return None


def shapes_of(name):
    return [*SHAPES, *([(8, 4096, 16, 64)] if name.startswith(BESIDE_SOFTMAX) else [])]


def measure(name, shape, copy, seconds):
    make, operator, path = OPERATORS[name]
    sets = [make(*shape) for _ in range(3)]
    grads = torch.randn_like(operator(*sets[0]))
    bytes_once = sum(x.numel() * x.element_size() for x in sets[0]) + grads.numel() * grads.element_size()
    leaves = [[x.clone().requires_grad_() for x in each] for each in sets]
    both = lambda *each: torch.autograd.grad(operator(*each), each, grads)
    row = {"operator": name, "shape": list(shape), "floor_ms": bytes_once / copy * 1e3,
           "floor_both_ms": bytes_once * 15 / 4 / copy * 1e3, "forward_ms": median_ms(operator, sets, seconds),
           "both_ms": median_ms(both, leaves, seconds)}  # fmt: skip
    if function := peer(path) if tuple(shape) in SHAPES[:2] else None:
        try:
            row["fla_ms"] = median_ms(lambda *each: function(*each)[0], sets, seconds)
        except Exception as problem:
            row["fla"] = str(problem)[:200]
    return row


def measured(name, shape, copy, seconds, profile):
    """Returns a row of the table, with the error if the operator fails."""
    try:
        row = measure(name, shape, copy, seconds)
        if profile and shape == SHAPES[1]:
            row["profile"] = kernels_of(name, shape)
        return row
    except Exception as problem:
        return {"operator": name, "shape": list(shape), "failed": str(problem).splitlines()[0][:300]}


def kernels_of(name, shape):
    """Returns (name, ms, launches) of the kernels of a call with its backward."""
    make, operator, _ = OPERATORS[name]
    leaves = [x.requires_grad_() for x in make(*shape)]
    both = lambda: torch.autograd.grad(operator(*leaves).float().sum(), leaves)
    both()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        both()
        torch.cuda.synchronize()
    found = [(event.key[:80], round(event.self_device_time_total / 1e3, 4), event.count) for event in profile.key_averages()]
    return sorted((entry for entry in found if entry[1] > 0), key=lambda entry: -entry[1])[:20]


def once(name):
    """Runs one call with its backward for a profiler, with kernels compiled before."""
    make, operator, _ = OPERATORS[name]
    for shape in ((1, 128, *SHAPES[1][2:]), SHAPES[1]):
        leaves = [x.requires_grad_() for x in make(*shape)]
        torch.autograd.grad(operator(*leaves).float().sum(), leaves)
    torch.cuda.synchronize()


def table(found):
    lines = ["| operator | B, T, H, K | forward, ms | over its floor | with backward, ms | over its floor | fla forward, ms |",
             "|---|---|--:|--:|--:|--:|--:|"]  # fmt: skip
    for row in found["rows"]:
        if "failed" in row:
            continue
        fla = f"{row['fla_ms']:.3f}" if "fla_ms" in row else "-"
        lines.append(f"| {row['operator']} | {', '.join(map(str, row['shape']))} | {row['forward_ms']:.3f} | {row['forward_ms'] / row['floor_ms']:.2f} | "
                     f"{row['both_ms']:.3f} | {row['both_ms'] / row['floor_both_ms']:.2f} | {fla} |")  # fmt: skip
    head = f"{found['device']}, torch {found['torch']}; a copy moves {found['copy'] / 1e12:.2f} TB/s (read and written)."
    return head + "\n\n" + "\n".join(lines)


def merged(old, new):
    """Returns the table of a run of some operators, with an earlier run's lines on the same card for the others."""
    if not old.strip() or old.split(",")[0] != new.split(",")[0]:
        return new
    key = lambda line: tuple(line.split(" | ")[:2])
    lines = {key(line): line for text in (old, new) for line in text.splitlines() if line.startswith("| ")}
    head = new[: new.index("| operator")]
    return head + "\n".join([*list(lines.values())[:1], new[new.index("|---") :].splitlines()[0], *list(lines.values())[1:]])


def write_page(path, text):
    page = path.read_text()
    before, begin, rest = page.partition(MARKS[0])
    old, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        sys.exit(f"[bench-cuda] {path} has no marks for the table")
    path.write_text(f"{before}{begin}\n{merged(old.strip(), text)}\n{end}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(OPERATORS))
    parser.add_argument("--profile", action="store_true", help="the kernels of each operator and their times, into the JSON")
    parser.add_argument("--once", action="store_true", help="one call of each, nothing is measured")
    parser.add_argument("--from-json", type=pathlib.Path, help="write --page from an earlier run")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a measurement, at most")
    chosen = parser.parse_args()
    if chosen.from_json:
        found = json.loads(chosen.from_json.read_text())
    else:
        if not torch.cuda.is_available():
            sys.exit("[bench-cuda] there is no GPU here")
        torch.ops.load_library(os.environ.get("CORTADO_OPS", str(ROOT / "build/release/lib/libcortado_ops.so")))
        names = [name for name in OPERATORS if any(name.startswith(each) for each in chosen.only)]
        if chosen.once:
            return [once(name) for name in names]
        found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy": bandwidth(), "rows": []}
        for name in names:
            for shape in shapes_of(name):
                found["rows"].append(measured(name, shape, found["copy"], chosen.seconds, chosen.profile))
                torch.cuda.empty_cache()
                if chosen.json:  # saved after each row: the GPU may be lent briefly
                    chosen.json.write_text(json.dumps(found, indent=1) + "\n")
                print({key: round(x, 3) if isinstance(x, float) else x for key, x in found["rows"][-1].items()}, flush=True)
    text = table(found)
    print(text)
    if chosen.page:
        write_page(chosen.page, text)
    return None


if __name__ == "__main__":
    main()
