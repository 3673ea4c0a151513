"""scripts/delete_mechanism.py: what is deleted with a mechanism, and what stays."""

import json
import subprocess
import sys

import pytest

REGISTRY = """#include "cortado/mechanisms/latte/mixer.h"
#include "cortado/mechanisms/mocha/mixer.h"
extern const Mechanism kMochaccino;
      &kLatte,       //
      &kMocha,       //
      &kMochaccino,  //
"""

OPERATORS = """__all__ = ["latte", "mocha",
           "scan"]


def latte(x):
    return x


def mocha(x):
    def inner():
        return x

    return inner()


def scan(x):
    return x
"""


@pytest.fixture(name="house")
def fixture_house(tmp_path):
    """Three mechanisms: mochaccino uses mocha, and mocha uses latte."""
    stands_on = {"latte": "shared", "mocha": "latte", "mochaccino": "mocha"}
    files = {f"src/cortado/mechanisms/{name}/mixer.h": f'#include "cortado/mechanisms/{other}/op.h"\n' for name, other in stands_on.items()}
    for name in stands_on:
        files[f"src/cortado/mechanisms/{name}/mixer.cpp"] = f'extern const Mechanism k{name.title()} = {{\n    .name = "{name}",\n}};\n'
        files[f"tests/recorded/{name}-0/expected.json"] = "{}"
        files[f"src/cortado/models/{name}_test.cpp"] = files[f"tests/python/test_{name}.py"] = ""
        files[f"experiments/drinks/{name}s.json"] = json.dumps({"config": f"../../configs/table/{name}.json"})
        files[f"configs/table/{name}.json"] = json.dumps({"layers": [{"mixer": {"mixer": name}}]})
    files["src/cortado/mechanisms/registry.cpp"] = REGISTRY
    files["lint-exceptions.txt"] = "# name and reason\nname src/a.cpp mocha a drink\nname src/a.cpp latte a drink\nfile src/cortado/models/mocha_test.cpp long\n"
    files["python/cortado/ops.py"] = OPERATORS
    files["src/a.cpp"] = 'const char* kDrinks = "latte mocha";\n'
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def delete(root, folder, *names):
    command = [sys.executable, root / "scripts/delete_mechanism.py", "--root", folder, *names]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_stands_on_a_mechanism_goes_with_it(house, root):
    done = delete(root, house, "mocha")
    assert done.returncode == 0, done.stderr
    assert not [path for path in house.rglob("*") if "moch" in path.name]
    assert [len(list(house.rglob(pattern))) for pattern in ("latte*", "test_latte.py", "*.json")] == [5, 1, 3]
    assert (house / "src/cortado/mechanisms/registry.cpp").read_text() == "".join(line for line in REGISTRY.splitlines(True) if "och" not in line)
    assert (house / "lint-exceptions.txt").read_text() == "# name and reason\nname src/a.cpp latte a drink\n"
    operators = OPERATORS.replace('"mocha",\n           ', "").partition("def mocha")[0] + "def scan(x):\n    return x\n"
    assert (house / "python/cortado/ops.py").read_text() == operators
    assert "src/a.cpp (1)" in done.stdout


def test_what_nothing_stands_on_goes_alone(house, root):
    assert delete(root, house, "mochaccino").returncode == 0
    assert (house / "src/cortado/mechanisms/mocha/mixer.cpp").exists() and (house / "configs/table/mocha.json").exists()
    assert "kMocha," in (house / "src/cortado/mechanisms/registry.cpp").read_text()


def test_one_of_several_that_are_declared_together(house, root):
    registry = house / "src/cortado/mechanisms/registry.cpp"
    registry.write_text("extern const Mechanism kMocha, kLatte,\n    kMochaccino;\n      &kLatte,  //\n      &kMocha,  //\n")
    assert delete(root, house, "mocha").returncode == 0
    assert registry.read_text() == "extern const Mechanism kLatte;\n      &kLatte,  //\n"


def test_no_such_mechanism(house, root):
    done = delete(root, house, "tea")
    assert done.returncode == 1 and 'no mechanism "tea"; there are: latte, mocha, mochaccino' in done.stderr
