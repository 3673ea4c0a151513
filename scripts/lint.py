"""Checks the sources: clang-format, functions of at most 60 lines, files of at most 500 lines, layers, mechanisms that are
named outside of their folders, documents' lines of at most 120 columns, and whether generated files are stale.

    python scripts/lint.py [--fix]

Exceptions are in lint-exceptions.txt. Prints one line per finding, and exits with 1 if there is one."""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXCEPTIONS = "lint-exceptions.txt"
ARCHITECTURE = "docs/architecture.md"
ENVIRONMENT = "docs/environment.md"
FUNCTION_LINES = 60
FILE_LINES = 500
PROSE_COLUMNS = 120
CPP = {".h", ".cpp", ".cu"}
CODE = CPP | {".py", ".sh", ".cmake"}
SKIP = {"build", ".venv", ".git", "out", "runs"}


def source_files(kinds=frozenset(CODE)):
    """Returns the paths of all files of these kinds that are tracked, or new and not ignored."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        paths = listed.stdout.splitlines()
    else:  # a source archive without git
        paths = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if not SKIP & set(p.relative_to(ROOT).parts)]
    return sorted(p for p in paths if pathlib.Path(p).suffix in kinds and (ROOT / p).is_file())


def run(command, **options):
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, **options)
    except FileNotFoundError:
        sys.exit(f"[lint] {command[0]} is missing: run `make setup`")


def format_findings(files, fix):
    """Returns clang-format's findings, one line per file."""
    tool = pathlib.Path(sys.executable).with_name("clang-format")
    cpp = [f for f in files if pathlib.Path(f).suffix in CPP]
    if not cpp:
        return []
    mode = ["-i"] if fix else ["--dry-run", "-Werror"]
    done = run([str(tool), *mode, *cpp])
    findings = {}
    for line in done.stderr.splitlines():
        if ": error: " in line:  # the first place in each file is enough
            findings.setdefault(line.split(":")[0], line)
    findings = list(findings.values())
    if done.returncode != 0 and not findings:
        findings = [done.stderr.strip() or f"clang-format ended with {done.returncode}"]
    return findings


def long_files(files):
    """Returns (path, lines) of files over the limit."""
    counted = ((f, len((ROOT / f).read_text(encoding="utf-8").splitlines())) for f in files)
    return [(f, lines) for f, lines in counted if lines > FILE_LINES]


def long_functions(files):
    """Returns (path, name, first line, lines) of functions over the limit, according to universal-ctags."""
    command = ["ctags", "--options=NONE", "--output-format=json", "--fields=+neS", "-o", "-", "-L", "-"]
    command += ["--languages=C++,Python", "--kinds-C++=f", "--kinds-Python=fm", "--langmap=C++:+.cu"]
    wanted = [f for f in files if pathlib.Path(f).suffix in CPP | {".py"}]
    done = run(command, input="\n".join(wanted))
    if done.returncode != 0:
        sys.exit(f"[lint] universal-ctags with JSON output is needed: {done.stderr.strip()}")
    found = []
    for tag in map(json.loads, done.stdout.splitlines()):
        if tag["name"].startswith("__anon"):  # a lambda counts as part of the function around it
            continue
        name = tag["name"]
        if name.startswith("TEST"):  # TEST(Suite, Case): the macro's arguments are the name
            name += tag.get("signature", "").replace(" ", "")
        elif "scope" in tag and not tag["scope"].startswith("__anon"):
            name = tag["scope"] + ("." if tag["path"].endswith(".py") else "::") + name
        lines = tag.get("end", tag["line"]) - tag["line"] + 1
        if lines > FUNCTION_LINES:
            found.append((tag["path"], name, tag["line"], lines))
    return found


def read_exceptions():
    """Returns {key: line number} of lint-exceptions.txt; a key is ("file", path), ("function", path, name) and the like."""
    exceptions, findings = {}, []
    path = ROOT / EXCEPTIONS
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines() if path.exists() else [], 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split()
        size = {"file": 2, "dispatch": 2, "function": 3, "name": 3, "include": 3}.get(words[0])
        if size is None or len(words) <= size:
            findings.append(
                f"{EXCEPTIONS}:{number}: expected `file|dispatch PATH REASON` or `function|name|include PATH NAME REASON`"
            )
        else:
            exceptions[tuple(words[:size])] = number
    return exceptions, findings


def mechanism_folders(files):
    """Returns {mechanism: folder} from the definitions in the folders."""
    found = {}
    for path in files:
        if re.fullmatch(r"src/cortado/mechanisms/\w+/\w+\.cpp", path):
            text = (ROOT / path).read_text(encoding="utf-8")
            for name in re.findall(r'^(?:extern )?const Mechanism k\w+ = \{\s*\.name = "(\w+)"', text, re.MULTILINE):
                found[name] = path.rpartition("/")[0]
    return found


def mechanism_uses(files):
    """Yields (("name" or "include", path, what), line, text) where production code names a mechanism, or includes its folder,
    from outside of it. The registry may."""
    folders = mechanism_folders(files)
    mine = {folder.rpartition("/")[2] for folder in folders.values()}
    names = re.compile('"(' + "|".join(sorted(folders)) + ')"')
    for path in files if folders else ():
        if not re.fullmatch(r"src/cortado/(?!testing/).*(?<!_test)\.(h|cpp|cu)", path):
            continue
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
            included = re.match(r'#include "cortado/mechanisms/(\w+)/', line)
            if included:
                if included[1] in mine and f"/{included[1]}/" not in path and not path.endswith("/registry.cpp"):
                    yield ("include", path, included[1]), number, f"includes the mechanism {included[1]}/"
                continue
            for name in names.findall(re.sub(r"(^|\s)//.*", "", line)):
                if not path.startswith(folders[name] + "/"):
                    yield ("name", path, name), number, f"names the mechanism {name} outside of its folder"


def dispatch_uses(files):
    """Yields (("dispatch", path), line, text) where production code outside of an op.cpp asks for a tensor's device or
    whether a kernel takes it. The conditions themselves, `bool ...takes(`, are next to their kernels."""
    for path in files:
        inside = re.fullmatch(r"src/cortado/(primitives|nn|mechanisms|models)/.*(?<!_test)\.(h|cpp)", path)
        if not inside or re.search(r"(/|_)op\.cpp$|primitives/choice\.h$|-inl\.h$", path):
            continue
        condition = False  # within the definition of one
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
            condition = bool(re.match(r"bool \w*takes\w*\(", line)) or (condition and line != "}")
            code = re.sub(r"(^|\s)//.*", "", line)
            if not condition and re.search(r"\bis_cuda\(\)|\w*takes\w*\(", code):
                yield ("dispatch", path), number, "chooses an implementation outside of an op.cpp (primitives/choice.h)"


def exceptional_findings(files):
    """Returns the findings that may have exceptions (sizes, named mechanisms), and exceptions that are not needed."""
    exceptions, findings = read_exceptions()
    used = set()
    for key, number, what in [*mechanism_uses(files), *dispatch_uses(files)]:
        used.add(key)
        if key not in exceptions:
            findings.append(f"{key[1]}:{number}: {what}")
    for path, lines in long_files(files):
        used.add(("file", path))
        if ("file", path) not in exceptions:
            findings.append(f"{path}:1: {lines} lines, at most {FILE_LINES} are allowed")
    for path, name, first, lines in long_functions(files):
        used.add(("function", path, name))
        if ("function", path, name) not in exceptions:
            findings.append(f"{path}:{first}: {name} has {lines} lines, at most {FUNCTION_LINES} are allowed")
    for key, number in exceptions.items():
        if key not in used:
            findings.append(f"{EXCEPTIONS}:{number}: no longer needed: {' '.join(key)}")
    return findings


def layers():
    """Returns the folders of src/cortado/ in the order of docs/architecture.md."""
    text = (ROOT / ARCHITECTURE).read_text(encoding="utf-8")
    block = text.partition("```\nsrc/cortado/\n")[2].partition("```")[0]
    return re.findall(r"^  (\w+)/ ", block, re.MULTILINE)


def layer_findings(files):
    """Returns includes of layers that come later in docs/architecture.md. Tests may also use `testing`."""
    inside = [f for f in files if re.fullmatch(r"src/cortado/\w+/.*\.(h|cpp|cu)", f)]
    if not inside:
        return []
    order = layers()
    findings = []
    for path in inside:
        own = path.split("/")[2]
        if own not in order:
            findings.append(f"{path}:1: {ARCHITECTURE} does not list the layer {own}/")
        elif own != "testing":
            below = set(order[order.index(own) + 1 :]) - ({"testing"} if path.endswith("_test.cpp") else set())
            for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
                included = re.match(r'#include "cortado/(\w+)/', line)
                if included and included[1] in below:
                    findings.append(f"{path}:{number}: {own}/ includes {included[1]}/, a layer below it ({ARCHITECTURE})")
    return findings


def wide_prose_findings(paths):
    """Returns lines of documents over the limit, except code, tables and pictures, which cannot be wrapped."""
    findings = []
    for path in paths:
        fenced = indented = False
        before = ""
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1):
            indented = line.startswith("    ") and (indented or not before.strip())
            fenced ^= line.lstrip().startswith("```")
            before = line
            if len(line) > PROSE_COLUMNS and not (fenced or indented or line.lstrip().startswith(("|", "!["))):
                findings.append(f"{path}:{number}: {len(line)} columns, at most {PROSE_COLUMNS} are allowed")
    return findings


READ = re.compile(r"""(?:getenv|environment|environ\.get|environ\.setdefault)\(\s*"(\w+)"|environ\[\s*"(\w+)"|"(\w+)" in os\.environ
|\$\{(CORTADO_\w+):-""".replace("\n", ""))


def environment_findings(files):
    """Returns environment variables that are read somewhere but missing from the page's tables, and rows of variables that
    nothing reads."""
    if not (ROOT / ENVIRONMENT).exists():
        return []
    rows = [line.split("|")[1] for line in (ROOT / ENVIRONMENT).read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    findings, mentioned = [], set()
    for path in files:
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        mentioned |= named & set(re.findall(r"\b[A-Z][A-Z_]+\b", text))
        for found in READ.finditer(text):
            name = next(group for group in found.groups() if group)
            if name.startswith("CORTADO_") and name not in named:
                line = text.count("\n", 0, found.start()) + 1
                findings.append(f"{path}:{line}: {ENVIRONMENT} does not name {name}")
    return findings + [f"{ENVIRONMENT}:1: nothing reads {name}" for name in sorted(named - mentioned)]


def generated_findings():
    """Returns generated files that scripts/settings.py would write differently. With a build, its --check finds more."""
    if not (ROOT / "python/cortado/settings.json").exists():
        return []
    import settings

    return settings.stale_findings(ROOT)


def main():
    parser = argparse.ArgumentParser(description="Checks the form of the sources.")
    parser.add_argument("--fix", action="store_true", help="apply clang-format instead of checking it")
    fix = parser.parse_args().fix
    files = source_files()
    findings = format_findings(files, fix)
    if not fix:
        findings += exceptional_findings(files) + layer_findings(files) + wide_prose_findings(source_files({".md"})) + generated_findings()
        findings += environment_findings(files)
    for finding in findings:
        print(finding)
    if findings:
        sys.exit(f"[lint] {len(findings)} findings in {len(files)} files" + ("" if fix else "; `make format` fixes the layout"))
    print(f"[lint] {len(files)} files {'formatted' if fix else 'are in order'}")


if __name__ == "__main__":
    main()
