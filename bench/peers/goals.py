"""The goals, and the results that they apply to."""

from dataclasses import dataclass
from typing import Optional


@dataclass
class Goal:
    what: str
    least: float
    measured: Optional[float]
    unit: str = "x"


LOLA = "LoLA 256, 256, int8"


def peer_ratios(results, name, what, passes, tokens=None, against=None):
    rows = (results.get(name) or {}).get("rows", [])
    return [
        row["ratio"]
        for row in rows
        if row["what"] == what and row["pass"] == passes and tokens in (None, row["tokens"]) and against in (None, row["against"])
    ]


def least(values):
    return min(values, default=None)


def against_peers(results):
    """(goal, least ratio, file, operator, pass, T, and the peer if there are several)."""
    lines = [
        ("gated_scan forward, per-channel gate, against ggml's GLA", 3.5, "ggml", "gated_scan/channel", "forward", 4096),
        ("gated_scan forward, per-channel gate, against chunked PyTorch", 6, "pytorch_chunked", "gated_scan/channel", "forward", 4096),
        ("gated_scan forward, per-channel gate, against JAX's scan", 5, "jax", "gated_scan/channel", "forward", 4096),
        ("gated_scan forward, head gate, against ggml's Mamba-2 scan", 3, "ggml", "gated_scan/head", "forward", 4096),
        ("gated_scan forward, no gate, against ggml's Mamba-2 scan", 3, "ggml", "gated_scan/none", "forward", 4096),
        ("gated_scan with backward, against chunked PyTorch with autograd", 6, "pytorch_chunked", "gated_scan/channel", "forward+backward", 4096),
        ("gated_scan with backward, against JAX", 50, "jax", "gated_scan/channel", "forward+backward", 4096),
        ("delta_scan forward, head gate, against ggml's gated delta net", 3, "ggml", "delta_scan/head", "forward", 4096),
        ("delta_scan forward, head gate, against transformers' chunk function", 6, "transformers", "delta_scan/head", "forward", 4096),
        ("latte forward against SDPA, T = 256", 1, "sdpa", "latte", "forward", 256),
        ("latte forward against SDPA, T = 16,384", 100, "sdpa", "latte", "forward", 16384),
        ("window_attention w = 128 forward against SDPA, T = 16,384", 40, "sdpa", "window_attention/128", "forward", 16384),
        ("window_attention w = 128 with backward against SDPA, T = 16,384", 30, "sdpa", "window_attention/128", "forward+backward", 16384),
        ("SmolLM2, softmax: reading 512 tokens against llama.cpp", 3, "llama_cpp", "softmax, int8", "prefill", 512),
        ("SmolLM2, softmax: reading 4,096 tokens against llama.cpp", 3, "llama_cpp", "softmax, int8", "prefill", 4096),
        ("SmolLM2, softmax: writing at depth 512 against llama.cpp", 1, "llama_cpp", "softmax, int8", "32 tokens", 512),
        ("LoLA, C = λ = 256: reading 7,900 tokens against llama.cpp", 2, "llama_cpp", LOLA, "prefill", 7900),
        ("LoLA, C = λ = 256: writing at depth 7,900 against llama.cpp", 2.5, "llama_cpp", LOLA, "32 tokens", 7900, "llama.cpp"),
        ("LoLA, C = λ = 256: speed at depth 7,900 relative to 1,024", 0.95, "llama_cpp", LOLA, "256 tokens", 7900, "itself at 1024"),
        ("LoLA, C = λ = 256: speed at depth 32,768 relative to 1,024", 0.95, "llama_cpp", LOLA, "256 tokens", 32768, "itself at 1024"),
        ("window_attention at full window against SDPA, forward, the worst T", 1, "sdpa", "window_attention/full", "forward", None),
        ("window_attention at full window against SDPA, with backward, the worst T", 1, "sdpa", "window_attention/full", "forward+backward", None),
    ]
    for name in ("blurry_window", "gated_slot", "abc"):
        slots = "65" if name == "blurry_window" else "64"
        for passes, label in (("forward", "forward"), ("forward+backward", "with backward")):
            lines.append((f"{name}, {slots} slots, {label}, against the two-pass chunked form in PyTorch", 2, "slots", name, passes, 4096))
    return [Goal(what, goal, least(peer_ratios(results, *where))) for what, goal, *where in lines]


def operator_rows(results, name, passes, threads=None):
    rows = (results.get(name) or {}).get("rows", [])
    most = max((row["threads"] for row in rows), default=0)
    return {(row["case"], row["tokens"]): row for row in rows if row["pass"] == passes and row["threads"] == (threads or most)}


def against_ourselves(results):
    forward, both = (operator_rows(results, "ops", passes) for passes in ("forward", "forward+backward"))
    found = []

    def value(rows, key, part):
        return part(rows[key]) if key in rows else None

    key = ("gated_scan/channel", 4096)
    rate = forward[key]["seconds"] / both[key]["seconds"] if key in forward and key in both else None
    found.append(Goal("gated_scan with backward, of its own forward's rate", 0.2, rate))
    for case in ("elementwise_scan", "short_conv"):
        share = value(operator_rows(results, "lengths", "forward"), (case, 65536), lambda row: 100 * row["share"]["stream"])
        found.append(Goal(f"{case} forward, T = 65,536, of the measured streaming bandwidth", 70, share, " %"))
    for case in ("channel", "head", "constant", "none", "value"):
        share = value(forward, (f"gated_scan/{case}", 4096), lambda row: 100 * row["share"]["matmul"])
        found.append(Goal(f"gated_scan/{case} forward, of the best float32 matmul", 50, share, " %"))
    for passes, rows, label in (("forward", forward, "forward"), ("forward+backward", both, "with backward")):
        alone = operator_rows(results, "ops", passes, threads=1)
        primitives = [k for k in rows if k[0].split("/")[0] in ("gated_scan", "slot_scan", "delta_scan", "window_attention")]
        ratios = {k[0]: alone[k]["seconds"] / rows[k]["seconds"] for k in primitives if k in alone and rows[k]["threads"] > 1}
        worst = min(ratios, key=ratios.get) if ratios else ""
        found.append(Goal(f"2 threads against 1, {label}, the worst primitive ({worst})", 1.8, ratios.get(worst)))
    return found


def models(results):
    found = []
    for dtype in ("float32", "bfloat16"):
        for what, tokens, goal in (("macchiato model", 1024, 1.5), ("macchiato model", 4096, 4), ("softmax model", 256, 1)):
            ratio = least(peer_ratios(results, "gpt", f"{what}, {dtype}", "training step", tokens))
            found.append(Goal(f"training step, {what} against a plain PyTorch GPT, T = {tokens:,}, {dtype}", goal, ratio))
    times = [row["tokens"] / row["ours"] for row in (results.get("transfer") or {}).get("rows", []) if row["what"].endswith("default")]
    found.append(Goal("attention transfer of SmolLM2, sequences of 1,024, as by default", 1000, least(times), " tokens/s"))
    decode = {row["depth"]: row["seconds"] for row in (results["model_macchiato"] or {}).get("decode", [])}
    deep = [depth for depth in decode if depth >= 1_000_000]
    ratio = decode[min(decode)] / decode[deep[0]] if deep else None
    found.append(Goal("decode, speed at depth 1,000,000 of that at depth 100", 0.95, ratio))
    tiny = (results["model_tiny"] or {}).get("decode", [])
    work = 100 * (1 - tiny[0]["seconds"] / decode[min(decode)]) if tiny and decode else None
    found.append(Goal("decode, share of a step that is not dispatch (a step of the same model at width 24)", 75, work, " %"))
    return found


def goals(results):
    return against_peers(results) + against_ourselves(results) + models(results)
