"""The commands that the README and docs/ show still parse: each is given to the program, which reads its options and
stops there (CORTADO_PARSE_ONLY)."""

import os
import re
import shlex

import pytest

PROGRAM = re.compile(r"(?:\S*/)?cortado$")
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.M | re.S)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.M)


# Words of commands that need a mechanism, which may be deleted.
NEEDS = {
    "lolcats": r"linearize (?!.*--method macchiato)|--memory (lolcats|lola)|--op lolcats",
    "lola": r"--memory lola|--cache|--chunk",
    "macchiato": r"macchiato|--cross-entropy",
}


def commands_of(text):
    """The `cortado ...` commands in a document's code, as lists of words without the program's name."""
    found = []
    for block in [match.group(1) for match in FENCED.finditer(text)] + INDENTED.findall(FENCED.sub("", text)):
        for line in block.replace("\\\n", " ").splitlines():
            if "cortado" not in line:
                continue
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # prose or code with an apostrophe
                continue
            words = [word for word in words if not re.fullmatch(r"\$|[A-Z_]+=\S*|nice|time", word)]
            if words and PROGRAM.match(words[0]):
                end = next((i for i, word in enumerate(words) if word in ("|", "&&", ";", ">", "2>", "<")), len(words))
                found.append(words[1:end])
    return found


def documents(root):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]


def given(words, folder):
    """Returns a command as the program gets it. Numbers replace names like N and SEED."""
    words = ["1" if re.fullmatch(r"[A-Z]", word) else re.sub(r"=[A-Z]$", "=1", word) for word in words]
    words = ["float32" if word == "TYPE" else word for word in words]
    for word in words:
        if re.fullmatch(r"[\w/.-]+\.\w+", word) and not word.startswith("/"):  # a file that a check looks for
            (folder / word).parent.mkdir(parents=True, exist_ok=True)
            (folder / word).touch()
    return words


def complaint(cortado, words, folder):
    """Returns the program's objection to a command, or ""."""
    done = cortado(*given(words, folder), cwd=folder, env={**os.environ, "CORTADO_PARSE_ONLY": "1"})
    return done.stderr.strip() or "?" if done.returncode else ""


def test_every_command_of_the_documents_parses(cortado, mechanisms, root, tmp_path):
    found, asked = 0, {}
    gone = [pattern for name, pattern in NEEDS.items() if name not in mechanisms]
    for document in documents(root):
        for words in commands_of(document.read_text()):
            found += 1
            if not any(re.search(pattern, " ".join(words)) for pattern in gone):
                asked.setdefault(tuple(words), document.relative_to(root))
    said = {words: complaint(cortado, words, tmp_path) for words in asked}
    wrong = [f"{asked[words]}: cortado {shlex.join(words)}\n    {text}" for words, text in said.items() if text]
    assert not wrong, "\n".join(wrong)
    assert found >= 50, f"only {found} commands found: are the documents read rightly?"


@pytest.mark.parametrize(
    "command", ["genrate run", "generate run --promt x", "train --steps 3 --out", "eval run --context many", "bench x"]
)
def test_what_does_not_parse_is_found(cortado, tmp_path, command):
    assert complaint(cortado, command.split(), tmp_path)


def test_commands_are_found_in_code_alone():
    text = "cortado is prose\n\n    cortado eval x --text y   # why\n\n```\n$ A=1 bin/cortado train \\\n  c.json | tail\n```\n"
    assert commands_of(text) == [["train", "c.json"], ["eval", "x", "--text", "y"]]
