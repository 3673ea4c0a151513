"""What is generated from the settings that the program reads: types and documentation.

    settings.py            asks the library that was built, and writes what has changed
    settings.py --check    writes nothing; ends with 1 where something would change

python/cortado/settings.json has each setting with its range, default and meaning. The first two come from the library, which
lists the settings that it reads; the meanings stand beside the code, in settings.json of src/cortado/mechanisms/ and of its
folders (a folder's own go before those of all). From this file alone are made

    python/cortado/nn.pyi  the classes of cortado.nn, for type checkers and editors

which `make lint` does too, to see that they are what is committed."""

import argparse
import importlib.util
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MECHANISMS = "src/cortado/mechanisms"
FACTS = "python/cortado/settings.json"
STUBS = "python/cortado/nn.pyi"
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
    """A module of the package that needs no torch, which the package's own import does."""
    spec = importlib.util.spec_from_file_location(name, root / "python/cortado" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path):
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def said(entry):
    """A meaning alone, or an object with it and with the types that the setting takes."""
    return entry if isinstance(entry, dict) else {"meaning": entry}


def with_meanings(mechanisms, root):
    """Facts of the mechanisms, with what the files beside the code say of their settings."""
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


def asked(root):
    """The facts, of the library that was built."""
    sys.path.insert(0, str(root / "python"))
    from cortado import _mixers

    facts = [{**_mixers.facts_of(name), "class": _mixers.class_name(name)} for name in _mixers.mechanisms()]
    return {"mechanisms": with_meanings(facts, root)}


def stubs(facts, root):
    """nn.pyi."""
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


def made_from(facts, root):
    """{path: text} of all that follows from the facts."""
    return {STUBS: stubs(facts, root)}


def forget(root, names):
    """Takes deleted mechanisms out of the facts, and writes anew what follows."""
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
    """Files that the committed facts would make otherwise: what can be seen without a build."""
    return [f"{path}:1: not what {FACTS} makes of it: .venv/bin/python scripts/settings.py" for path in
            stale(made_from(read(root / FACTS), root), root)]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description="Writes what follows from the settings that the program reads.")
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where something would change")
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
