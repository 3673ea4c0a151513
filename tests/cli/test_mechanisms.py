"""cortado mechanisms: what it prints about every mixer."""

import json

import pytest


@pytest.fixture(name="listed", scope="module")
def fixture_listed(cortado):
    done = cortado("mechanisms", "--json")
    assert done.returncode == 0, done.stderr
    return {entry["name"]: entry for entry in json.loads(done.stdout)}


def test_every_mixer_is_described(listed):
    for entry in listed.values():
        assert all(entry[key] for key in ("family", "paper", "equation", "state", "kernel")), entry
        assert entry["causal"] or entry["bidirectional"]
        assert ("step" in entry["forms"]) == entry["causal"]


def test_kernels_are_those_of_the_primitives(listed):
    assert set(listed["gla"]["primitives"]) == {"gated_scan", "short_conv"}
    for entry in listed.values():
        written = {name: kernel for name, kernel in entry["primitives"].items() if kernel != "ATen"}
        if not written:
            assert entry["kernel"] == "ATen"
        for name, kernel in written.items():
            assert kernel in entry["kernel"] and name in entry["kernel"]


def test_encoders_have_no_causal_form(listed):
    assert [name for name, entry in listed.items() if not entry["causal"]] == ["linformer", "perceiver"]


def test_tables_have_a_row_a_mixer(cortado, listed):
    lines = cortado("mechanisms").stdout.splitlines()
    assert {"kernel", "primitives"} <= set(lines[0].split())
    rows = cortado("mechanisms", "--markdown").stdout.splitlines()[2:]
    for number, name in enumerate(listed):
        assert lines[2 + number].split()[0] == name
        assert rows[number].startswith(f"| `{name}` ")


def test_the_readme_has_the_table(cortado, root):
    """The document has the table as printed; rows of deleted mechanisms may stay."""

    def rows(text):
        return [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]

    readme = rows((root / "README.md").read_text())
    assert [row for row in rows(cortado("mechanisms", "--markdown").stdout) if row not in readme] == []


def test_rows_fit_the_terminal(cortado, at_a_terminal, listed):
    for columns in (70, 100):
        shown = at_a_terminal("mechanisms", columns=columns)
        assert max(map(len, shown.splitlines())) <= columns
        assert set(listed) <= {line.split()[0] for line in shown.splitlines() if line}
        assert "--wide" in shown
    everything = cortado("mechanisms").stdout
    assert at_a_terminal("mechanisms", "--wide", columns=70) == everything
    assert at_a_terminal("mechanisms", columns=1000) == everything


def test_one_form_of_output_at_a_time(refused):
    assert "--json" in refused("mechanisms", "--json", "--markdown")
    assert "--wide" in refused("mechanisms", "--json", "--wide")
