"""Builds the documentation's site with mkdocs (mkdocs.yml), treating warnings as errors.

    docs.py [--out DIR]       default: build/docs

The pages are all Markdown files of the repository, in their folders, so that links between them work unchanged, and one page per
module of the Python API, generated from its docstrings. A broken link is an error, and so is a docstring that does not match its
function."""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build/docs-source"
PARTS = ("bench/peers/",)  # parts of other pages
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")
# Pages of the Python API: the module and the members to show; None: all.
API = {
    "cortado": ("cortado", ["program", "load", "parameter_groups"]),
    "ops": ("cortado.ops", None),
    "nn": ("cortado.nn", None),
    "models": ("cortado.models", ["LanguageModel", "Block", "Tokenizer"]),
    "transformers": ("cortado.transformers", ["CortadoForCausalLM", "CortadoConfig", "CortadoCache", "CortadoBackbone", "CortadoTokenizer"]),
}
# Members that a module imports from others.
MORE = {"nn": ["cortado._mixers.Mixer", "cortado._mixers.mixer", "cortado._mixers.mechanisms"]}


def pages():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.splitlines() if not path.startswith(PARTS) and (ROOT / path).exists()]


def gather():
    """Copies the pages, and the other files that they link to, into SOURCE."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    wanted = pages()
    for path in pages():
        for link in LINK.findall((ROOT / path).read_text(encoding="utf-8")):
            target = (ROOT / path).parent / link
            if ":" not in link and target.suffix != ".md" and target.is_file():
                wanted.append(target.resolve().relative_to(ROOT).as_posix())
    for path in sorted(set(wanted)):
        (SOURCE / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, SOURCE / path)


def reference():
    """Writes one page per module of the API."""
    (SOURCE / "api").mkdir()
    for page, (module, members) in API.items():
        lines = [f"# {module}", "", f"::: {module}", "    options:", "      show_root_heading: false", "      show_root_toc_entry: false"]
        if members:
            lines += ["      members:", *(f"        - {member}" for member in members)]
        for more in MORE.get(page, ()):
            lines += ["", f"::: {more}"]
        (SOURCE / f"api/{page}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Builds the documentation's site.")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/docs")
    out = parser.parse_args().out
    gather()
    reference()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out.resolve())]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        found = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
        sys.exit("\n".join([*found, "[docs] warnings are errors"]))
    print(f"[docs] {out / 'index.html'}")


if __name__ == "__main__":
    main()
