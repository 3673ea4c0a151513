"""cortado bench ops and bench model: what they measure, and what they refuse."""

import json
import os

import pytest

CONFIG = {
    "dim": 16,
    "heads": 2,
    "layers": 2,
    "vocabulary": 20,
    "mixer": {"mixer": "latte", "latents": 8},
    "feed_forward": {"type": "mlp", "dim": 32},
}
PASSES = ["forward", "forward+backward", "step"]


def bench(cortado, *arguments):
    done = cortado("bench", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(name="config")
def fixture_config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_every_operator_is_measured(cortado, mechanisms):
    result = bench(cortado, "ops", "--tokens", 20, "--heads", 2, "--size", 8, "--rounds", 1, "--threads", 1)
    cases = {}
    for row in result["rows"]:
        cases.setdefault(row["case"], []).append(row["pass"])
        assert row["seconds"] > 0 and row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
    assert {name.split("/")[0] for name in cases} == {
        *("gated_scan", "slot_scan", "delta_scan", "dplr_scan", "window_attention", "elementwise_scan", "short_conv"),
        *("latte", "blurry_window", "gated_slot", "abc", "normalized_linear"),
        *({"macchiato", "lolcats"} & mechanisms),
    }
    for name, passes in cases.items():
        assert passes == (PASSES[:2] if name == "lolcats" else PASSES), name
    ceilings = result["ceilings"][0]
    assert all(ceilings[key] > 0 for key in ("fma_flops", "matmul_flops", "read_bytes", "stream_bytes", "exps"))


def test_work_is_counted_as_documented(cortado):
    result = bench(cortado, "ops", "--op", "gated_scan/head", "--tokens", "32", "--heads", 2, "--size", 8, "--rounds", 1)
    rows = {row["pass"]: row for row in result["rows"]}
    forward = 32 * 2 * 4 * 8 * 8  # 4 K V per token and head
    for name, flops, floats in [
        ("forward", forward, 32 * 2 * (4 * 8 + 1)),
        ("forward+backward", 3.5 * forward, 32 * 2 * (3 * (3 * 8 + 1) + 2 * 8)),
        ("step", forward / 32, 2 * (4 * 8 + 1) + 2 * 2 * 8 * 8),
    ]:
        row = rows[name]
        assert row["flops_per_second"] * row["seconds"] == pytest.approx(flops)
        assert row["bytes_per_second"] * row["seconds"] == pytest.approx(4 * floats)
        assert row["share"]["matmul"] == pytest.approx(row["flops_per_second"] / result["ceilings"][0]["matmul_flops"])


@pytest.mark.slow
def test_threads_and_lengths_are_measured_in_turns(cortado):
    arguments = ["--op", "latte,abc", "--tokens", "16,8", "--size", 8, "--threads", "1,2", "--rounds", 1, "--dtype", "bfloat16"]
    result = bench(cortado, "ops", *arguments)
    assert [c["threads"] for c in result["ceilings"]] == [1, 2]
    found = {(row["case"], row["tokens"], row["threads"]) for row in result["rows"] if row["pass"] == "forward"}
    assert found == {(case, tokens, threads) for case in ("latte", "abc") for tokens in (8, 16) for threads in (1, 2)}
    assert result["settings"]["dtype"] == "bfloat16" and result["machine"]["cpu"]


def test_ops_as_text(cortado):
    done = cortado("bench", "ops", "--op", "short_conv", "--tokens", 16, "--rounds", 1, env={**os.environ, "CORTADO_ISA": "scalar"})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "scalar" in lines[0] and any("% stream" in line for line in lines)
    assert [line.split()[1] for line in lines if line.startswith("short_conv")] == PASSES


def test_ops_refuses(refused):
    assert 'did you mean "gated_scan"' in refused("bench", "ops", "--op", "gated_scam")
    assert "gated_scan/head" in refused("bench", "ops", "--op", "zzz")
    assert "--tokens" in refused("bench", "ops", "--tokens", "0")
    assert "--threads" in refused("bench", "ops", "--threads", "none")
    assert "--dtype" in refused("bench", "ops", "--dtype", "int8")
    assert 'did you mean "--rounds"' in refused("bench", "ops", "--round", 3)
    assert "bench ops" in refused("bench")
    assert "models" in refused("bench", "models")


def test_model_is_measured(cortado, config):
    result = bench(cortado, "model", config, "--tokens", "8,16", "--depth", "0,50,400", "--rounds", 1, "--threads", 1)
    assert [(row["tokens"], row["batch"]) for row in result["training"]] == [(8, 512), (16, 256)]
    assert [row["tokens"] for row in result["prefill"]] == [8, 16]
    assert all(row["tokens_per_second"] > 0 and row["peak_bytes"] > 0 for row in result["training"])
    depths = [row["depth"] for row in result["decode"]]
    assert len(depths) == 3 and depths[0] == 0 and depths[1] >= 50 and depths[2] == 400
    states = [row["state_bytes"] for row in result["decode"]]
    assert states[1] == states[2] and all(row["seconds"] > 0 and row["resident_bytes"] > 0 for row in result["decode"])
    assert result["all_depths_reached"] is True and result["parameters"] > 0


def test_a_depth_beyond_the_budget_is_not_claimed(cortado, config):
    arguments = [config, "--tokens", 8, "--rounds", 1, "--threads", 1, "--depth", "100,500000000", "--budget", "0.5"]
    result = bench(cortado, "model", *arguments, "--set", 'mixer={"mixer": "softmax"}')
    assert result["all_depths_reached"] is False
    depths = [row["depth"] for row in result["decode"]]
    assert depths[0] == 100 and len(depths) == 2 and 100 < depths[1] < 500_000_000
    done = cortado("bench", "model", *arguments)
    assert "500,000,000 was not reached" in done.stdout


def test_model_refuses(refused, config):
    assert "missing.json" in refused("bench", "model", "missing.json")
    assert "config" in refused("bench", "model")
    assert "--budget" in refused("bench", "model", config, "--budget", "-1")
    line = refused("bench", "model", config, "--set", "positions=learned", "--set", "context=32", "--tokens", 16, "--depth", 100)
    assert "learned positions" in line and "100" in line
    assert "causal" in refused("bench", "model", config, "--set", "causal=maybe")
    assert "bidirectional" in refused("bench", "model", config, "--set", "causal=false")
