"""--help: one voice, and texts that fit a terminal."""

import re

import pytest

# A command's description begins with a verb in the imperative.
VERBS = {"Compare", "Continue", "Convert", "Draw", "Hide", "List", "Look", "Measure", "Print", "Read", "Serve", "Train", "Turn", "Write"}
COMMANDS = [
    [], ["prepare"], ["train"], ["eval"], ["eval", "niah"], ["eval", "ruler"], ["eval", "ppl"], ["generate"], ["compare"], ["describe"],
    ["import"], ["export"], ["linearize"], ["mechanisms"], ["doctor"],
    ["sweep"], ["task"], ["task", "list"], ["task", "show"], ["task", "statistics"], ["task", "export"], ["analyze"],
    *[["analyze", name] for name in ("attention", "latents", "collisions", "spectrum", "memory", "scaling", "convolution")],
    ["serve"], ["bench"], ["bench", "ops"], ["bench", "model"], ["bench", "scale"],
]  # fmt: skip


@pytest.fixture(name="helps", scope="module")
def fixture_helps(cortado):
    """Returns {words of a command: its --help}."""
    return {" ".join(words): cortado(*words, "--help").stdout for words in COMMANDS}


def test_every_command_is_told_in_the_same_voice(helps):
    listed = {}
    for text in helps.values():
        commands = text.partition("Subcommands:\n")[2].partition("\n\n")[0]
        listed |= dict(re.findall(r"^  (\w+) +(\w+)", commands, re.M))
    assert set(listed) == {words[-1] for words in COMMANDS if words}
    assert set(listed.values()) <= VERBS, listed


def test_flags_say_what_to_do(helps):
    for name, text in helps.items():
        assert not re.search(r"\b(as JSON|no progress bar)$", text.replace("show no progress bar", ""), re.M), name
