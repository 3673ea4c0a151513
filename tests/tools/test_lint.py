"""scripts/lint.py finds the faults that it checks for."""

import shutil
import subprocess
import sys

import pytest

LONG = "int f(int x) {\n" + "  ++x;\n" * 59 + "  return x;\n}\n"  # 62 lines


@pytest.fixture(name="lint")
def fixture_lint(tmp_path, root):
    """Lints a new repository with these files and exceptions; returns (exit code, output)."""

    def run(files, exceptions=""):
        (tmp_path / "scripts").mkdir()
        shutil.copy(root / "scripts/lint.py", tmp_path / "scripts/lint.py")
        shutil.copy(root / ".clang-format", tmp_path)
        (tmp_path / "lint-exceptions.txt").write_text(exceptions)
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        command = [sys.executable, tmp_path / "scripts/lint.py"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_good_files_pass(lint):
    code, output = lint({"a.cpp": "int f() { return 1; }\n", "b.py": "x = 1\n"})
    assert code == 0, output


@pytest.mark.parametrize(
    "name, content, finding",
    [
        ("a.cpp", "int  f( ) {return 1;}\n", "clang-format"),
        ("a.cpp", LONG, "a.cpp:1: f has 62 lines"),
        ("a.cpp", LONG.replace("int f(int x)", "TEST(Suite, Case)"), "TEST"),
        ("a.py", "def g():\n" + "    x = 1\n" * 60, "a.py:1: g has 61 lines"),
        ("a.h", "// x\n" * 501, "a.h:1: 501 lines"),
    ],
)
def test_findings(lint, name, content, finding):
    code, output = lint({name: content})
    assert code == 1
    assert finding in output


LAYERS = "Layers:\n\n```\nsrc/cortado/\n  base/    no torch\n  nn/      norms\n  testing/ for tests\n```\n"


@pytest.mark.parametrize(
    "path, include, finding",
    [
        ("nn/norm.h", "base/error.h", None),
        ("nn/norm.h", "nn/other.h", None),
        ("base/file.cpp", "nn/norm.h", "src/cortado/base/file.cpp:1: base/ includes nn/, a layer below it"),
        ("base/file_test.cpp", "nn/norm.h", "base/ includes nn/"),
        ("base/file_test.cpp", "testing/compare.h", None),
        ("base/file.cpp", "testing/compare.h", "base/ includes testing/"),
        ("testing/compare.h", "nn/norm.h", None),
        ("serve/queue.h", "base/error.h", "docs/architecture.md does not list the layer serve/"),
    ],
)
def test_layers(lint, path, include, finding):
    code, output = lint({"docs/architecture.md": LAYERS, f"src/cortado/{path}": f'#include "cortado/{include}"\n'})
    assert code == (1 if finding else 0), output
    assert finding is None or finding in output


MECHANISM = 'namespace cortado {\n\nconst Mechanism kLatte = {\n    .name = "latte",\n};\n\n}  // namespace cortado\n'
ALL_LAYERS = LAYERS.replace("  testing/", "  mechanisms/ all\n  testing/")


@pytest.mark.parametrize(
    "path, line, finding",
    [
        ("nn/norm.cpp", 'const char* kName = "latte";', "nn/norm.cpp:1: names the mechanism latte outside of its folder"),
        ("nn/norm.cpp", 'const char* kJson = R"({"mixer": "latte"})";', "names the mechanism latte"),
        ("nn/norm.cpp", 'int x = 0;  // "latte" is one', None),
        ("nn/norm_test.cpp", 'const char* kName = "latte";', None),
        ("testing/names.h", 'inline const char* kName = "latte";', None),
        ("mechanisms/latte/op.cpp", 'const char* kName = "latte";', None),
        ("mechanisms/gla/op.cpp", 'const char* kName = "latte";', "gla/op.cpp:1: names the mechanism latte"),
        ("mechanisms/gla/op.cpp", '#include "cortado/mechanisms/latte/op.h"', "gla/op.cpp:1: includes the mechanism latte/"),
        ("mechanisms/gla/op.cpp", '#include "cortado/mechanisms/shared/heads.h"', None),
        ("mechanisms/registry.cpp", '#include "cortado/mechanisms/latte/op.h"', None),
    ],
)
def test_mechanisms_are_named_in_their_folders_alone(lint, path, line, finding):
    files = {"docs/architecture.md": ALL_LAYERS, "src/cortado/mechanisms/latte/mixer.cpp": MECHANISM}
    code, output = lint({**files, f"src/cortado/{path}": line + "\n"})
    assert code == (1 if finding else 0), output
    assert finding is None or finding in output


def test_a_mechanisms_name_can_be_an_exception(lint):
    files = {
        "docs/architecture.md": ALL_LAYERS,
        "src/cortado/mechanisms/latte/mixer.cpp": MECHANISM,
        "src/cortado/nn/norm.cpp": 'const char* kDrink = "latte";\n',
    }
    code, output = lint(files, "name src/cortado/nn/norm.cpp latte a drink\ninclude src/cortado/nn/norm.cpp latte none\n")
    assert code == 1
    assert "outside of its folder" not in output
    assert "no longer needed: include src/cortado/nn/norm.cpp latte" in output


def test_wide_prose_is_found_and_what_cannot_be_folded_is_not(lint):
    wide = "word " * 25
    prose = f"# A title\n\n{wide}\n\n- a list\n    {wide}\n"
    code = f"```\n{wide}\n```\n\n    {wide}\n    {wide}\n\n| {wide} |\n\n![{wide}](a.svg)\n"
    status, output = lint({"a.md": prose, "b.md": code})
    assert status == 1
    assert "a.md:3: 125 columns" in output and "a.md:6: 129 columns" in output
    assert "b.md" not in output


def test_exceptions_need_a_cause_and_a_reason(lint):
    code, output = lint({"a.cpp": LONG, "b.cpp": "int x;\n"}, "function a.cpp f one table\nfile b.cpp was long once\n")
    assert code == 1
    assert "a.cpp" not in output
    assert "lint-exceptions.txt:2: no longer needed: file b.cpp" in output


def test_exception_without_reason_is_refused(lint):
    code, output = lint({"a.cpp": LONG}, "function a.cpp f\n")
    assert code == 1
    assert "lint-exceptions.txt:1: expected" in output


def test_variables_of_the_environment(lint):
    page = "| variable |\n|---|\n| `CORTADO_ISA`, `CORTADO_GONE` |\n"
    code, output = lint({"docs/environment.md": page, "docs/architecture.md": LAYERS,
                         "src/cortado/base/isa.cpp": 'const char* isa = std::getenv("CORTADO_ISA");\n',
                         "a.py": "import os\n\nx = os.environ" + '.get("CORTADO_NEW", "1")\n'})  # fmt: skip
    assert code == 1 and "nothing reads CORTADO_GONE" in output and "a.py:3: docs/environment.md does not name CORTADO_NEW" in output
    assert "CORTADO_ISA" not in output
