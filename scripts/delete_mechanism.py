"""Deletes mechanisms from the sources: folder, lines of the registry, configs and experiments that use them, Python operators,
their own tests, and learned weights.

    python scripts/delete_mechanism.py NAME [NAME ...]

Mechanisms that include a header of a deleted folder are deleted too (`lola` with `lolcats`). A mechanism's own tests are
NAME_test.cpp and test_NAME.py in any folder, and tests/recorded/NAME-*. Other tests that use it are marked by
`@pytest.mark.mechanism("NAME")` or `CORTADO_NEEDS("NAME")` and are then skipped. The remaining mentions, in prose and
scripts, are listed at the end for a person to decide on. `git checkout .` restores everything."""

import argparse
import json
import pathlib
import re
import shutil
import sys

import settings

ROOT = pathlib.Path(__file__).resolve().parent.parent
MECHANISMS = "src/cortado/mechanisms"
REGISTRY = f"{MECHANISMS}/registry.cpp"
SEARCHED = ("src", "tests", "scripts", "configs", "docs", "bench", "examples", "Makefile", "README.md")


def definitions(root):
    """Returns {name: (folder, name of its object)} of the mechanisms that the folders define."""
    found = {}
    for path in sorted((root / MECHANISMS).glob("*/*.cpp")):
        text = path.read_text()
        for constant, name in re.findall(r'^(?:extern )?const Mechanism (k\w+) = \{\s*\.name = "(\w+)"', text, re.MULTILINE):
            found[name] = (path.parent, constant)
    return found


def folders_included(folder):
    """Returns the names of other mechanisms' folders whose headers a folder includes."""
    texts = (path.read_text() for path in [*folder.rglob("*.h"), *folder.rglob("*.cpp")])
    return {name for text in texts for name in re.findall(rf'#include "{MECHANISMS[4:]}/(\w+)/', text)} - {folder.name}


def closure(names, known):
    """Returns the names, the other mechanisms of their folders, and all mechanisms that depend on one of these."""
    folders = {known[name][0] for name in names}
    while True:
        gone = {folder.name for folder in folders}
        more = {folder for folder, _ in known.values() if folders_included(folder) & gone} - folders
        if not more:
            return sorted(name for name, (folder, _) in known.items() if folder in folders)
        folders |= more


def uses(value, names):
    """Whether a config contains one of the mixers, at any depth."""
    if isinstance(value, dict):
        return value.get("mixer") in names or any(uses(inner, names) for inner in value.values())
    return isinstance(value, list) and any(uses(inner, names) for inner in value)


def files_of(root, names):
    """Returns the files to delete besides the folders."""
    found = [path for path in sorted((root / "configs").rglob("*.json")) if uses(json.loads(path.read_text()), names)]
    configs = {path.resolve() for path in found}
    for path in sorted((root / "experiments").glob("*/*.json")):
        base = json.loads(path.read_text()).get("config")
        if isinstance(base, str) and (path.parent / base).resolve() in configs:
            found.append(path)
    for name in names:
        found += sorted((root / "src").rglob(f"{name}_test.cpp")) + sorted((root / "tests").rglob(f"test_{name}.py"))
        found += sorted((root / "tests" / "recorded").glob(f"{name}-*"))
        found += sorted((root / "data").rglob(f"{name}.safetensors"))
    return found


def drop_lines(path, unwanted):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not unwanted(line)))


def delete(root, names):
    """Deletes the mechanisms. Returns the deleted paths."""
    known = definitions(root)
    gone = {known[name][0] for name in names}
    constants = {known[name][1] for name in names}
    paths = sorted(gone) + [path for path in files_of(root, names) if not gone & set(path.parents)]
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    includes = tuple(f'#include "{MECHANISMS[4:]}/{folder.name}/' for folder in gone)
    registry, any_of = root / REGISTRY, rf"({'|'.join(constants)})\b"
    entry = re.compile(rf"\s*(&|extern const Mechanism ){any_of}[,;]\s*(//.*)?$")
    drop_lines(registry, lambda line: line.startswith(includes) or entry.match(line))
    # Some are declared together: extern const Mechanism kLatte, kMacchiato, ...;
    together = re.sub(rf"(extern const Mechanism ){any_of},\s*", r"\1", registry.read_text())
    registry.write_text(re.sub(rf",\s*{any_of}", "", together))
    operators = root / "python/cortado/ops.py"  # one function each, and their list
    if operators.exists():
        kept = re.sub(rf"^def ({'|'.join(names)})\(.*?(?=^def |\Z)", "", operators.read_text(), flags=re.DOTALL | re.MULTILINE)
        operators.write_text(re.sub(rf'"({"|".join(names)})"(,\s*|(?=\]))', "", kept).rstrip() + "\n")
    settings.forget(root, names)
    exceptions = root / "lint-exceptions.txt"  # `name PATH NAME REASON`, `file PATH REASON`
    if exceptions.exists():
        words = {*names, *(folder.name for folder in gone)}
        drop_lines(exceptions, lambda line: not line.startswith("#") and (
            line.split()[2:3] and line.split()[0] in ("name", "include") and line.split()[2] in words
            or line.split()[1:2] and not (root / line.split()[1]).exists()))
    return paths


def mentions(root, names):
    """Returns {path: number of lines} that still contain one of the names as a word."""
    word = re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)
    found = {}
    for top in SEARCHED:
        for path in sorted((root / top).rglob("*")) if (root / top).is_dir() else [root / top]:
            if path.suffix not in (".h", ".cpp", ".py", ".sh", ".json", ".md", "") or not path.is_file():
                continue
            lines = sum(1 for line in path.read_text(errors="replace").splitlines() if word.search(line))
            if lines:
                found[path.relative_to(root)] = lines
    return found


def main():
    parser = argparse.ArgumentParser(description="Deletes mechanisms from the sources.")
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="the repository (this one)")
    options = parser.parse_args()
    known = definitions(options.root)
    for name in options.names:
        if name not in known:
            sys.exit(f'[delete] no mechanism "{name}"; there are: {", ".join(sorted(known))}')
    names = closure(options.names, known)
    for path in delete(options.root, names):
        print(f"deleted {path.relative_to(options.root)}")
    print(f"[delete] {', '.join(names)}: gone. Still named (lines):")
    for path, lines in mentions(options.root, names).items():
        print(f"  {path} ({lines})")


if __name__ == "__main__":
    main()
