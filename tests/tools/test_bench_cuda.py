"""bench/cuda/operators.py without a GPU: an earlier run's table, and the message if there is nothing to measure."""

import json
import subprocess
import sys

import pytest
import torch

ROW = {"operator": "latte", "shape": [8, 2048, 16, 64], "floor_ms": 0.05, "floor_both_ms": 0.2, "forward_ms": 0.1,
       "both_ms": 0.6, "fla_ms": 0.4}  # fmt: skip


@pytest.fixture(name="bench")
def fixture_bench(root):
    command = [sys.executable, root / "bench/cuda/operators.py"]
    return lambda *words: subprocess.run([*command, *map(str, words)], capture_output=True, text=True, check=False)


def test_an_earlier_run_becomes_a_table(bench, tmp_path):
    found, page = tmp_path / "bench.json", tmp_path / "page.md"
    rows = [ROW, {**ROW, "operator": "gated_slot", "fla_ms": None}]
    del rows[1]["fla_ms"]
    found.write_text(json.dumps({"device": "a GPU", "torch": "2.11", "copy": 3.0e12, "rows": rows}))
    page.write_text("before\n<!-- table: bench/cuda/operators.py -->\nold\n<!-- end of the table -->\nafter\n")
    done = bench("--from-json", found, "--page", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert "a GPU, torch 2.11; a copy moves 3.00 TB/s" in text
    assert "| latte | 8, 2048, 16, 64 | 0.100 | 2.00 | 0.600 | 3.00 | 0.400 |" in text
    assert "| gated_slot | 8, 2048, 16, 64 | 0.100 | 2.00 | 0.600 | 3.00 | - |" in text
    again = page.read_text()
    assert bench("--from-json", found, "--page", page).returncode == 0 and page.read_text() == again


def test_a_run_of_some_operators_leaves_the_others_lines(bench, tmp_path):
    found, page = tmp_path / "bench.json", tmp_path / "page.md"
    page.write_text("<!-- table: bench/cuda/operators.py -->\n<!-- end of the table -->\n")

    def lines(device, rows):
        found.write_text(json.dumps({"device": device, "torch": "2.11", "copy": 3.0e12, "rows": rows}))
        assert bench("--from-json", found, "--page", page).returncode == 0
        return page.read_text().splitlines()

    slot = {**ROW, "operator": "gated_slot"}
    before = lines("a GPU", [ROW, slot])
    after = lines("a GPU", [{**slot, "forward_ms": 0.05}, {**slot, "shape": [1, 2, 3, 4]}])
    assert after[:6] == before[:6] and after[6].startswith("| gated_slot | 8, 2048, 16, 64 | 0.050 |")
    assert after[7].startswith("| gated_slot | 1, 2, 3, 4 |") and len(after) == len(before) + 1
    other = lines("another", [slot])
    assert len(other) == len(before) - 1 and other[1].startswith("another, torch 2.11")


def test_what_is_missing_is_said_in_a_line(bench, tmp_path):
    found, page = tmp_path / "bench.json", tmp_path / "page.md"
    found.write_text(json.dumps({"device": "a GPU", "torch": "2.11", "copy": 3.0e12, "rows": [ROW]}))
    page.write_text("no marks\n")
    done = bench("--from-json", found, "--page", page)
    assert done.returncode == 1 and "has no marks for the table" in done.stderr and page.read_text() == "no marks\n"
    if not torch.cuda.is_available():
        done = bench()
        assert done.returncode == 1 and done.stderr == "[bench-cuda] there is no GPU here\n"
