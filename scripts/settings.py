"""Generates type stubs and documentation from the settings that the program reads.

    settings.py            asks the built library, and writes the files that have changed
    settings.py --check    writes nothing; exits with 1 if a file would change

python/cortado/settings.json lists each setting with its range, default and meaning. Ranges and defaults come from the library.
Meanings come from the files settings.json in src/cortado/models, train, tasks and mechanisms, and from those in the folder of
each task and mechanism, which take precedence. An entry is the meaning, or an object with "meaning" and with facts that the
library cannot tell: "type", "expected", "default". Two files are generated from python/cortado/settings.json alone:

    python/cortado/nn.pyi  the classes of cortado.nn, for type checkers and editors
    docs/settings.md       all settings of config.json, for people

`make lint` checks that the committed files are up to date."""

import argparse
import copy
import importlib.util
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MECHANISMS = "src/cortado/mechanisms"
FACTS = "python/cortado/settings.json"
STUBS = "python/cortado/nn.pyi"
PAGE = "docs/settings.md"
# The search for settings begins with these configs: some settings are only read if an object is present, and varying single words
# and switches does not add objects.
SMALLEST = {"dim": 64, "heads": 4, "layers": 1, "mixer": {"mixer": ""}}
CONFIGS = [{}, {"vocabulary": 256}, {"norm": "layer"}, {"layers": [{"mixer": {"mixer": ""}}], "mixer": None}, {"positions": "learned", "context": 8},
           *({"rope_scaling": {"type": kind, "factor": 2, "original_context": 8}} for kind in ("linear", "llama3", "yarn", "factors")),
           {"rope_scaling": {"type": "longrope", "short_factors": [1], "long_factors": [1], "original_context": 8, "context": 8}},
           {"feed_forward": {"type": "experts", "shared": 8}}, {"input": {"type": "numbers"}, "head": {"type": "classes", "classes": 2}}]  # fmt: skip
TRAININGS = [{}, {"lora": {}}]
STUBS_HEAD = '''"""Every mechanism as a torch.nn.Module. Written by scripts/settings.py."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from cortado._mixers import Mixer as Mixer
from cortado._mixers import class_name as class_name
from cortado._mixers import mechanisms as mechanisms
from cortado._mixers import mixer as mixer

__all__: list[str]
'''


class WrongSettings(Exception):
    pass


def package_module(root, name):
    """Imports a module of the package by its file, because importing the package itself requires torch."""
    spec = importlib.util.spec_from_file_location(name, root / "python/cortado" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def said(entry):
    """Returns an entry, which may be the meaning alone, as an object with "meaning"."""
    return entry if isinstance(entry, dict) else {"meaning": entry}


def with_meanings(mechanisms, root):
    """Returns the facts about the mechanisms, with the meanings from the files beside the code."""
    import delete_mechanism  # which imports this

    general = read(root / MECHANISMS / "settings.json")
    folders = {name: folder for name, (folder, _) in delete_mechanism.definitions(root).items()}
    missing, found = [], []
    for facts in mechanisms:
        own = {**general, **read(folders[facts["name"]] / "settings.json")}
        missing += [f"{facts['name']}.{it['name']}" for it in facts["settings"] if it["name"] not in own]
        bare = [{key: it[key] for key in ("name", "expected", "default", "words", "by_sizes")} for it in facts["settings"]]
        settings = [{**it, **said(own.get(it["name"], ""))} for it in bare]
        found.append({**facts, "settings": settings})
    if missing:
        raise WrongSettings(f"{MECHANISMS}/[NAME/]settings.json do not say what these mean: {', '.join(missing)}")
    return found


def set_path(settings, path, value):
    for key in path[:-1]:
        settings = settings.setdefault(key, {})
    settings[path[-1]] = value


def questions(ask, kind, seeds):
    """Returns the settings by path: {"feed_forward.type": {...}}. They are those that the library asks for when it reads the seeds, or
    the seeds with another word or switch in one of their settings."""
    found = {}
    waiting = [(seed, True) for seed in seeds]
    while waiting:
        settings, vary = waiting.pop(0)
        for question in json.loads(ask(kind, json.dumps(settings))):
            path = [*question["place"].split(".")[1:], question["name"]]
            place = question["place"].replace(f"{kind}.layers[0]", "layers[]").removeprefix(kind).lstrip(".")
            name = ".".join(filter(None, [place, question["name"]]))
            if name not in found:
                found[name] = {**question, "name": name}
            for value in (question["words"] or [True, False] * (question["expected"] == "true or false")) if vary else []:
                if "[" not in name:
                    waiting.append((copy.deepcopy(settings), False))
                    set_path(waiting[-1][0], path, value)
    return found


def described(found, entries, source):
    """Returns the settings of a group, each with its entry, in the order of the entries."""
    missing = sorted(set(found) - set(entries))
    unknown = sorted(name for name, entry in entries.items() if name not in found and "expected" not in said(entry))
    if missing or unknown:
        raise WrongSettings(f"{source}: no meaning of {missing}, and nothing reads {unknown}")
    listed = []
    for name, entry in entries.items():
        bare = {key: found.get(name, {}).get(key) for key in ("expected", "default", "words")}
        told = {"default_text" if key == "default" else key: value for key, value in said(entry).items()}
        listed.append({"name": name, **bare, **told})
    return listed


def asked_configs(ask, root):
    """Returns the groups of config.json's settings: {"model": [...], "training": [...], "tasks": [{"name", "about", "settings"}]}."""
    source = root / "src/cortado"
    model = questions(ask, "config", [{**SMALLEST, **more} for more in CONFIGS])
    training = questions(ask, "training", TRAININGS)
    tasks, general = [], read(source / "tasks/settings.json")
    for task in json.loads(ask("tasks", "")):
        own, found = read(source / "tasks" / task["name"] / "settings.json"), questions(ask, "task", [{"name": task["name"]}])
        first = {name: general[name] for name in ("name", "shuffle")}
        known = first | own | {name: entry for name, entry in general.items() if name in found and name not in own}
        tasks.append({**task, "settings": described(found, known, f"src/cortado/tasks/{task['name']}/settings.json")})
    return {"model": described(model, read(source / "models/settings.json"), "src/cortado/models/settings.json"),
            "training": described(training, read(source / "train/settings.json"), "src/cortado/train/settings.json"),
            "tasks": tasks}  # fmt: skip


def asked(root):
    """Returns the contents of settings.json, from the built library."""
    sys.path.insert(0, str(root / "python"))
    import torch

    from cortado import _mixers

    facts = [{**_mixers.facts_of(name), "class": _mixers.class_name(name)} for name in _mixers.mechanisms()]
    return {"mechanisms": with_meanings(facts, root), **asked_configs(torch.ops.cortado.asked_settings, root)}


def stubs(facts, root):
    """Returns the text of nn.pyi."""
    settings = package_module(root, "_settings")
    lines = [STUBS_HEAD]
    for mechanism in facts["mechanisms"]:
        text = settings.docstring(mechanism, mechanism["class"]).replace("\n", "\n    ").replace("    \n", "\n")
        lines += ["", f"class {mechanism['class']}(Mixer):", f'    """{text}\n    """', "", "    def __init__(", "        self,"]
        lines += ["        dim: int,", "        heads: int = 1,", "        *,", "        layer: int = 0,", "        layers: int = 1,"]
        lines += ["        causal: bool = True,", "        device: torch.device | str | None = None,"]
        lines += ["        dtype: torch.dtype | None = None,"]
        for it in mechanism["settings"]:
            if it["name"] not in settings.COMMON:
                lines.append(f"        {it['name']}: {' | '.join(settings.types_of(it))} = {settings.written_default(it)},")
        lines += ["    ) -> None: ...", ""]
    return "\n".join(lines)


PAGE_HEAD = """# Settings

<!-- Written by scripts/settings.py. -->

All keys of a model's `config.json`. `--set KEY=VALUE` changes one by its path: `--set training.batch=32`, `--set
mixer.window=65`. Every key but `dim`, `layers` and `mixer` has a default. An unknown key is an error.
[environment.md](environment.md) has the environment variables, `cortado COMMAND --help` the options of the commands.

- [Model](#model)
- [Training](#training)
- [Tasks](#tasks)
- [Mechanisms](#mechanisms)
"""
MODEL_TEXT = "Keys with a point lie in an object: `feed_forward.type` is `{\"feed_forward\": {\"type\": ...}}`."
TRAINING_TEXT = 'The object `"training"`.'
TASKS_TEXT = 'The object `"task"`, for models that learn something other than a text ([tasks.md](tasks.md)).'
MECHANISMS_TEXT = """The object `"mixer"`: `{"mixer": "gla", "decay_rank": 32}`. The classes of `cortado.nn` have the same settings, as
arguments. Defaults marked "by size" depend on `dim` and `heads`, and are given for 64 and 4."""


def table(settings, listed, default):
    rows = [[f"`{it['name']}`", settings.expected(it), default(it), it["meaning"]] for it in listed]
    lines = [" | ".join(re.sub(r"\bNone\b", "null", cell).replace("|", "\\|") for cell in row) for row in rows]
    return ["| setting | type | default | meaning |", "|---|---|---|---|", *(f"| {line} |" for line in lines)]


def config_default(setting):
    """Returns a default as JSON, or in words."""
    told, value = setting.get("default_text"), setting["default"]
    return told or ("none" if value in (None, "") else f"`{json.dumps(value)}`")


def mixer_default(setting):
    if setting["name"] in ("heads", "rope_theta"):
        return "the model's"
    value = "none" if setting["default"] is None else f"`{json.dumps(setting['default'])}`"
    return value + (" (by size)" if setting["by_sizes"] else "")


def page(facts, root):
    """Returns the text of docs/settings.md."""
    settings = package_module(root, "_settings")
    lines = [PAGE_HEAD, "## Model", "", MODEL_TEXT, "", *table(settings, facts["model"], config_default), ""]
    lines += ["## Training", "", TRAINING_TEXT, "", *table(settings, facts["training"], config_default), ""]
    lines += ["## Tasks", "", TASKS_TEXT, ""]
    for task in facts["tasks"]:
        lines += [f"### Task `{task['name']}`", "", f"{task['about'][:1].upper()}{task['about'][1:]}.", ""]
        lines += [*table(settings, task["settings"], config_default), ""]
    lines += ["## Mechanisms", "", MECHANISMS_TEXT, ""]
    for it in facts["mechanisms"]:
        lines += [f"### `{it['name']}`", "", f"`cortado.nn.{it['class']}`. {it['paper']}.", ""]
        lines += [*table(settings, it["settings"], mixer_default), ""]
    return "\n".join(lines)


def made_from(facts, root):
    """Returns the generated files as {path: text}."""
    return {STUBS: stubs(facts, root), PAGE: page(facts, root)}


def forget(root, names):
    """Removes deleted mechanisms from settings.json, and writes all files again."""
    if not (root / FACTS).exists():
        return
    facts = read(root / FACTS)
    facts["mechanisms"] = [it for it in facts["mechanisms"] if it["name"] not in names]
    for path, text in {FACTS: written(facts), **made_from(facts, root)}.items():
        (root / path).write_text(text, encoding="utf-8")


def written(facts):
    return json.dumps(facts, indent=1, ensure_ascii=False) + "\n"


def stale(files, root):
    return [path for path, text in files.items() if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text]


def stale_findings(root=ROOT):
    """Returns the generated files that differ from the committed facts. Needs no build."""
    return [f"{path}:1: differs from {FACTS}; run .venv/bin/python scripts/settings.py" for path in
            stale(made_from(read(root / FACTS), root), root)]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description="Generates type stubs and documentation from the settings that the program reads.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file would change")
    check = parser.parse_args().check
    try:
        facts = asked(ROOT)
    except WrongSettings as error:
        sys.exit(f"[settings] {error}")
    files = {FACTS: written(facts), **made_from(facts, ROOT)}
    changed = stale(files, ROOT)
    for path in changed:
        print(f"[settings] {path} {'is stale' if check else 'written'}")
        if not check:
            (ROOT / path).write_text(files[path], encoding="utf-8")
    sys.exit(1 if check and changed else 0)


if __name__ == "__main__":
    main()
