"""Files that are generated from the settings are up to date and true, and their examples run."""

import ast
import inspect
import sys

import pytest
import torch

import cortado
import cortado.nn


@pytest.fixture(name="settings")
def fixture_settings(root, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "scripts"))
    import settings

    yield settings
    for name in ("settings", "delete_mechanism"):
        sys.modules.pop(name, None)


def test_generated_files_are_what_the_library_says(settings, root):
    facts = settings.asked(root)
    files = {settings.FACTS: settings.written(facts), **settings.made_from(facts, root)}
    assert settings.stale(files, root) == [], "run .venv/bin/python scripts/settings.py"


def test_stale_files_are_found_without_a_build(settings, root, tmp_path):
    for path in (settings.FACTS, settings.STUBS, settings.PAGE, "python/cortado/_settings.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((root / path).read_text())
    assert settings.stale_findings(tmp_path) == []
    (tmp_path / settings.STUBS).write_text((root / settings.STUBS).read_text().replace("= 129", "= 128", 1))
    assert [finding.partition(":")[0] for finding in settings.stale_findings(tmp_path)] == [settings.STUBS]


def test_a_deleted_mechanism_is_forgotten(settings, root, tmp_path):
    for path in (settings.FACTS, settings.PAGE, "python/cortado/_settings.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((root / path).read_text())
    settings.forget(tmp_path, ["gla"])
    assert "GLA" not in (tmp_path / settings.STUBS).read_text() and settings.stale_findings(tmp_path) == []


def test_stubs_have_the_classes_and_arguments_that_there_are(root):
    tree = ast.parse((root / "python/cortado/nn.pyi").read_text())
    stubs = {it.name: it for it in tree.body if isinstance(it, ast.ClassDef)}
    assert list(stubs) == [cortado.nn.class_name(name) for name in cortado.nn.mechanisms()]
    for name, stub in stubs.items():
        made = getattr(cortado.nn, name)
        arguments = next(it for it in stub.body if isinstance(it, ast.FunctionDef)).args
        defaults = [*arguments.defaults, *arguments.kw_defaults]
        shown = {it.arg: ast.literal_eval(value) for it, value in zip([*arguments.args[2:], *arguments.kwonlyargs], defaults, strict=True)}
        expected = inspect.signature(made).parameters
        assert shown == {key: it.default for key, it in expected.items() if key not in ("self", "dim")}
        assert inspect.cleandoc(ast.get_docstring(stub)) == inspect.cleandoc(made.__doc__)


@pytest.mark.parametrize("name", cortado.nn.mechanisms())
def test_examples_run(name):
    made = getattr(cortado.nn, cortado.nn.class_name(name))
    lines = made.__doc__.partition("Example:\n")[2].splitlines()
    found = {"cortado": cortado, "torch": torch}
    exec("\n".join(line.strip().removeprefix(">>> ") for line in lines), found)
    assert found["y"].shape == (2, 16, 64)
