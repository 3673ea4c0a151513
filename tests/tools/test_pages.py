"""scripts/pages.py: tables and pictures of documents come from results that are committed."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

SWEEP = {
    "about": "recall",
    "config": {
        "dim": 16, "heads": 1, "layers": 1, "mixer": {"mixer": "gla"}, "feed_forward": {"type": "none"},
        "task": {"name": "mqar", "length": 16, "pairs": 2, "vocabulary": 32, "examples": 64, "test_examples": 16},
        "training": {"batch": 16, "steps": 6, "warmup": 1, "evaluate_every": 3, "dtype": "float32"},
    },
    "runs": [{"mixer.mixer": "gla"}, {"mixer.mixer": "linear"}],
    "metric": "accuracy",
    "series": ["mixer.mixer"],
    "x": ["state_bytes"],
}  # fmt: skip


@pytest.fixture(name="pages")
def fixture_pages(program, root):
    def run(*words):
        command = [sys.executable, root / "scripts/pages.py", program, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(name="results")
def fixture_results(cortado, tmp_path):
    (tmp_path / "recall.json").write_text(json.dumps(SWEEP))
    assert cortado("sweep", tmp_path / "recall.json", "--out", tmp_path / "out").returncode == 0
    for name in ("sweep.json", "results.jsonl"):
        (tmp_path / "results/recall").mkdir(parents=True, exist_ok=True)
        shutil.copy(tmp_path / "out" / name, tmp_path / "results/recall" / name)
    return tmp_path / "results"


@pytest.mark.mechanism("macchiato", "lola", "kda")  # with what the results were made
@pytest.mark.slow
def test_documents_are_what_the_results_make(pages):
    done = pages("--check")
    assert done.returncode == 0, done.stderr


def test_a_block_is_filled_and_held(pages, results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Recall\n<!-- results: recall; columns: accuracy, mixer; pictures: state_bytes -->\n<!-- end -->\nmore\n")
    assert pages("--results", results, page).returncode == 0
    text = page.read_text()
    assert "| mixer " in text and "| linear " in text and f"cortado sweep {tmp_path}/recall.json" in text and "2 runs" in text
    assert (tmp_path / "pictures/recall-state_bytes.svg").read_text().startswith("<svg")
    assert pages("--results", results, "--check", page).returncode == 0
    lines = [json.loads(line) for line in (results / "recall/results.jsonl").read_text().splitlines()]
    number = f"{lines[0]['accuracy']:.4f}"
    assert number in text
    page.write_text(text.replace(number, "0.9999"))
    done = pages("--results", results, "--check", page)
    assert done.returncode == 1 and "is not what scripts/pages.py makes" in done.stderr
    assert pages("--results", results, page).returncode == 0 and page.read_text() == text


@pytest.mark.parametrize(
    "block, message",
    [
        ("nothing", "there are no results called nothing"),
        ("recall; columns: colour", 'no column "colour"'),
        ("recall; pictures: cat", "no picture cat"),
        ("recall; rows: 3", "unknown: rows"),
    ],
)
def test_a_wrong_block_is_said(pages, results, tmp_path, block, message):
    page = pathlib.Path(tmp_path / "page.md")
    page.write_text(f"<!-- results: {block} -->\nas it was\n<!-- end -->\n")
    done = pages("--results", results, page)
    assert done.returncode == 1 and message in done.stderr and "as it was" in page.read_text()
