"""bench/peers: how results are measured, checked, and compared with the goals. Needs no other implementation."""

import sys

import pytest
import torch


@pytest.fixture(name="peers")
def fixture_peers(root, monkeypatch):
    """The modules of bench/peers by name."""
    monkeypatch.syspath_prepend(str(root / "bench/peers"))
    yield lambda name: __import__(name)
    for name in ("common", "goals", "document"):
        sys.modules.pop(name, None)


def test_errors_are_relative_to_the_largest(peers):
    error = peers("common").relative_error
    assert error(torch.tensor([1.0, 4.0]), torch.tensor([1.0, 5.0])) == pytest.approx(0.2)
    assert error(torch.tensor([1.0]), torch.tensor([1.0, 1.0])) == float("inf")
    assert error(torch.tensor([float("nan")]), torch.tensor([1.0])) == float("inf")


def test_medians_take_turns(peers):
    order = []
    first, second = peers("common").medians([lambda: order.append("a"), lambda: order.append("b")], 3, least=0)
    assert order == ["a", "b"] * 4
    assert first >= 0 and second >= 0


def test_goals_are_found_in_the_results(peers):
    goals = peers("goals").goals
    names = ("ops", "lengths", "model_macchiato", "model_tiny", "ggml", "sdpa", "pytorch_chunked", "slots", "transformers", "jax", "gpt")
    results = dict.fromkeys(names)
    assert all(goal.measured is None for goal in goals(results))
    line = {"what": "gated_scan/channel", "pass": "forward", "tokens": 4096, "against": "ggml_gated_linear_attn", "ratio": 3.0}
    results["ggml"] = {"rows": [line]}
    results["sdpa"] = {
        "rows": [{**line, "what": "window_attention/full", "tokens": tokens, "ratio": ratio} for tokens, ratio in ((256, 2.0), (1024, 0.5))]
    }
    row = {"case": "gated_scan/channel", "tokens": 4096, "share": {"matmul": 0.6, "stream": 0.1}}
    results["ops"] = {
        "rows": [
            {**row, "pass": passes, "threads": threads, "seconds": seconds * 2 / threads}
            for passes, seconds in (("forward", 1.0), ("forward+backward", 4.0))
            for threads in (1, 2)
        ]
    }
    results["model_macchiato"] = {"decode": [{"depth": 100, "seconds": 1.0}, {"depth": 1_000_000, "seconds": 1.25}]}
    measured = {goal.what: goal.measured for goal in goals(results) if goal.measured is not None}
    assert measured == {
        "gated_scan forward, per-channel gate, against ggml's GLA": 3.0,
        "window_attention at full window against SDPA, forward, the worst T": 0.5,
        "gated_scan with backward, of its own forward's rate": 0.25,
        "gated_scan/channel forward, of the best float32 matmul": 60,
        "2 threads against 1, forward, the worst primitive (gated_scan/channel)": 2.0,
        "2 threads against 1, with backward, the worst primitive (gated_scan/channel)": 2.0,
        "decode, speed at depth 1,000,000 of that at depth 100": 0.8,
    }


def test_the_document_says_what_is_reached_and_what_was_refused(peers):
    document = peers("document")
    names = ("ops", "lengths", "model_macchiato", "model_tiny", "ggml", "sdpa", "pytorch_chunked", "slots", "transformers", "jax", "gpt")
    results = dict.fromkeys(names)
    line = {"what": "gated_scan/channel", "pass": "forward", "tokens": 4096, "against": "GLA", "ours": 2e-3, "theirs": 8e-3, "ratio": 4.0}
    lines = [line, {**line, "what": "gated_scan/head", "ratio": 1.5}]
    settings = {"threads": 2, "rounds": 7}
    results["ggml"] = {"peer": "ggml", "settings": settings, "rows": lines, "refused": ["delta_scan: results differ by 1"]}
    goals = document.goal_table(results)
    assert "| gated_scan forward, per-channel gate, against ggml's GLA | 3.5x | 4.00x | yes |" in goals
    assert "| gated_scan forward, head gate, against ggml's Mamba-2 scan | 3x | 1.50x | **no** |" in goals
    assert "| latte forward against SDPA, T = 256 | 1x | not measured |  |" in goals
    text = document.peer_tables(results)
    assert "| `gated_scan/channel` | forward | 4096 | GLA | 2.00 ms | 8.00 ms | 4.00x |" in text
    assert "- refused: delta_scan: results differ by 1" in text
