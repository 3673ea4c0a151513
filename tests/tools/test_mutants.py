"""scripts/mutants.py: which changes it finds in C++ text, and that what it writes compiles and does what it says.
scripts/mutate.py: what it draws, drops, runs first and counts."""

import importlib
import json
import os
import re
import subprocess

import pytest

pytestmark = pytest.mark.slow  # they are compiled

CODE = """\
#include "cortado/a.h"
#define TWICE(x) ((x) + (x))
namespace cortado {
constexpr int kSize = 3 + 4;
// a - b in a comment
int changed(int a, int b, const std::vector<int64_t>& list) {
  constexpr int64_t kLocal = 1 + 2;
  fail_input_if(a < b, "[op] a must be at least b - ", 1 + 1);
  const int64_t difference = at::clamp(a, b) - static_cast<int64_t>(b) * 2;
  for (int i = 0; i < a; ++i) {
    state.total += f(difference, -i);
    state.most += i > b ? difference : 0;
  }
  if (!list.empty() && a == b) return std::max(a, b);
  throw Failure(concat("a - b", a - b));
}
}  // namespace cortado
"""

PROGRAM = """\
#include <algorithm>
#include <cstdio>
#include <cstdlib>
int f(int a, int b) {
  int sum = a - b;
  for (int i = 0; i < 3; ++i) {
    sum += std::max(a, i);
  }
  return sum;
}
int main() {
  std::printf("%d\\n", f(5, 2));
  return 0;
}
"""


@pytest.fixture(name="mutants")
def fixture_mutants(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "scripts"))
    return importlib.import_module("mutants")


@pytest.fixture(name="mutate")
def fixture_mutate(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "scripts"))
    return importlib.import_module("mutate")


def found(mutants, text):
    changes = [change for there in mutants.places(text).values() for change in there]
    return {(re.sub(r"\s+", " ", c.before), re.sub(r"\s+", " ", c.after)) for c in changes}


def test_every_kind_of_change_is_found(mutants):
    pairs = found(mutants, CODE)
    for pair in [
        ("at::clamp(a, b) - static_cast<int64_t>(b) * 2", "at::clamp(a, b) + static_cast<int64_t>(b) * 2"),  # sign
        ("at::clamp(a, b) - static_cast<int64_t>(b) * 2", "at::clamp(a, b)"),  # dropped term
        ("static_cast<int64_t>(b) * 2", "static_cast<int64_t>(b) / 2"),
        ("at::clamp(a, b)", "at::clamp(b, a)"),  # swapped arguments
        ("i < a", "i <= a"),  # comparison
        ("a < b", "a <= b"),  # of a check too, whose message stays
        ("2", "3"),  # off by one
        ("state.total += f(difference, -i)", "state.total -= f(difference, -i)"),
        ("state.total += f(difference, -i);", ""),
        ("state.most += i > b ? difference : 0", "state.most -= i > b ? difference : 0"),
        ("-i", "i"),
        ("!list.empty()", "bool(list.empty())"),
        ("!list.empty() && a == b", "!list.empty() || a == b"),
        ("a == b", "a != b"),
        ("std::max(a, b)", "std::min(a, b)"),
    ]:
        assert pair in pairs, pair


def test_what_is_no_computation_is_left_alone(mutants):
    befores = {before for before, _ in found(mutants, CODE)}
    assert not befores & {"3 + 4", "1 + 2", "1 + 1", "a - b", "(x) + (x)"}
    assert not any("concat" in before or "int64_t>& " in before for before in befores)


def test_one_build_holds_them_all(mutants, tmp_path):
    """In the compiled program CORTADO_MUTANT chooses one change; without it there is none."""
    wanted = {"a - b": "a + b", "i < 3": "i <= 3", "std::max(a, i)": "std::min(a, i)"}
    changes = [c for cs in mutants.places(PROGRAM).values() for c in cs if wanted.get(c.before) == c.after]
    assert len(changes) == 3
    text, lines = mutants.with_mutants(PROGRAM, dict(enumerate(changes, 1)))
    assert all("cortado_mutant(" in text.splitlines()[line - 1] for n in lines for line in [lines[n][1]])
    (tmp_path / "cortado_mutant.h").write_text(mutants.HEADER)
    (tmp_path / "a.cpp").write_text(text)
    subprocess.run(["g++", "-std=c++20", f"-I{tmp_path}", tmp_path / "a.cpp", "-o", tmp_path / "a"], check=True)

    def printed(number):
        environment = {**os.environ, "CORTADO_MUTANT": str(number)}
        return int(subprocess.run([tmp_path / "a"], env=environment, capture_output=True, check=True).stdout)

    results = {c.before: printed(number) for number, c in enumerate(changes, 1)}
    assert (printed(0), results) == (18, {"a - b": 22, "i < 3": 23, "std::max(a, i)": 6})


def test_kernels_take_mutants(mutants, root, tmp_path):
    """A real kernel, compiled once for every instruction set, with every second of its changes that do not overlap."""
    text = (root / "src/cortado/primitives/time_softmax/kernel.cpp").read_text()
    chosen, end = {}, 0
    for changes in list(mutants.places(text).values())[::2]:
        change = next((c for c in changes if c.kind != "swapped arguments"), None)
        if change and change.start >= end:
            chosen[len(chosen) + 1], end = change, change.end
    assert len(chosen) >= 20
    (tmp_path / "cortado_mutant.h").write_text(mutants.HEADER)
    written, lines = mutants.with_mutants(text, chosen)
    copy = tmp_path / "kernel.cpp"
    # foreach_target includes the file by this name again, once for each instruction set
    copy.write_text(written.replace('"cortado/primitives/time_softmax/kernel.cpp"', f'"{copy}"'))
    command = ["g++", "-std=c++20", "-w", "-fsyntax-only", f"-I{tmp_path}", f"-I{root}/src", copy]
    complaints = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    at = {int(n) for n in re.findall(r"kernel\.cpp:(\d+):\d+: error", complaints)}
    broken = {number for number, own in lines.items() if at & set(own)}
    everywhere = {line for own in lines.values() for line in own}
    assert at <= everywhere, complaints[:3000]
    assert len(broken) <= len(chosen) // 4, complaints[:3000]


def test_the_sources_have_enough_places(mutants, root):
    files = [*root.glob("src/cortado/primitives/*/op.cpp"), *root.glob("src/cortado/mechanisms/*/mixer.cpp")]
    assert sum(len(mutants.places(f.read_text())) for f in files) > 1500


def test_seeds_in_one_build_do_not_meet(mutate, root):
    files = [str(f.relative_to(root)) for f in root.glob("src/cortado/primitives/short_conv/*.cpp")]
    texts = {f: (root / f).read_text() for f in files}
    drawn = mutate.draw(texts, [1, 2], 60)
    assert sorted(drawn) == [*range(10_001, 10_061), *range(20_001, 20_061)]
    places = sorted((file, c.start, c.end) for file, c in drawn.values())
    assert all(a[0] != b[0] or a[2] <= b[1] for a, b in zip(places, places[1:]))
    first = mutate.of_seed(drawn, 1, 40)
    assert first == mutate.draw(texts, [1], 40) and len(first) == 40
    assert first != mutate.draw(texts, [3], 40)


def test_a_compilers_complaint_names_its_mutants(mutate, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mutate, "COPY", tmp_path)
    lines = {"src/a.h": {1: range(5, 8), 2: range(9, 10)}, "src/b.cpp": {3: range(1, 4)}}
    note = f"{tmp_path}/src/b.cpp:2:7: required from here\n"
    assert mutate.broken(f"{note}{tmp_path}/src/a.h:6:3: error: no", lines) == {1}
    assert mutate.broken(f"{note}/usr/include/vector:6:3: error: no", lines) == {3}
    assert mutate.broken(f"In file {tmp_path}/src/a.h, somewhere: error", lines) == {1, 2}
    assert "all of ['src/a.h'] are dropped" in capsys.readouterr().out


def test_own_tests_come_first(mutate):
    """The mechanisms' tests come next; tests of lower layers never run."""

    def order(file):
        return [name for name, _ in mutate.stages(file, ["primitives_tests", "mechanisms_tests", "nn_tests"])]

    assert order("src/cortado/mechanisms/rg_lru/mixer.cpp") == [
        "mechanisms_tests rg_lru", "mechanisms_tests", "tests/python"]  # fmt: skip
    assert order("src/cortado/primitives/slot_scan/op.cpp") == [
        "primitives_tests slot_scan", "mechanisms_tests", "primitives_tests", "nn_tests", "tests/python"]  # fmt: skip
    for file in ("kernels/tiles-inl.h", "gates.cpp"):
        assert order(f"src/cortado/primitives/{file}") == [
            "primitives_tests", "mechanisms_tests", "nn_tests", "tests/python"]  # fmt: skip


def test_an_endless_mutant_is_ended(mutate, tmp_path, monkeypatch):
    monkeypatch.setattr(mutate, "COPY", tmp_path)
    passed, how, took = mutate.run_tests(["bash", "-c", "while :; do :; done"], 1, 1)
    assert not passed and how == "no end in 1 s" and took > 0.5
    assert mutate.run_tests(["bash", "-c", "exit $((CORTADO_MUTANT - 7))"], 7, 5)[:2] == (True, "exit code 0")
    failing = mutate.run_tests(["bash", "-c", "echo '[  FAILED  ] A.B (0 ms)'; exit 1"], 7, 5)
    assert failing[:2] == (False, "A.B")


def test_only_unexplained_survivors_count(mutate, mutants, tmp_path, monkeypatch, capsys):
    """An explanation covers one place: the line's code, with the change in «»."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "EXPLAINED", tmp_path / "explained.json")
    text = "int f() {\n  return g(0,\n           0);\n}\n"
    (tmp_path / "a.cpp").write_text(text)
    entry = {"file": "a.cpp", "code": "return g(«0»,", "after": "1", "why": "g takes no notice of it"}
    (tmp_path / "explained.json").write_text(json.dumps([entry]))

    def result(at, how):
        change = mutants.Change(at, at + 1, "0", "1", "off by one")
        return {"file": "a.cpp", **mutate.place_of("a.cpp", change), **vars(change), "by": "", "result": how}

    first, second = text.index("0"), text.rindex("0")
    assert result(second, "")["line"] == 3 and result(second, "")["code"] == "«0»);"
    assert mutate.report(1, [result(first, "survived"), result(second, "survived"), result(second, "killed")]) == 1
    assert "1 of 2 caught (50.0%); 1 more are the same program" in capsys.readouterr().out
