"""Output that cannot be written is a failure, for every command that prints results."""

import subprocess

import pytest


def full(program, *arguments):
    with open("/dev/full", "w") as device:
        command = [str(program), *map(str, arguments)]
        return subprocess.run(command, stdout=device, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "RUN", "--prompt", "ROMEO", "--n-tokens", 3),
        ("generate", "RUN", "--prompt", "ROMEO", "--n-tokens", 3, "--json"),
        ("eval", "RUN", "--text", "TEXT", "--json"),
        ("describe", "RUN", "--json"),
        ("doctor", "--json"),
        ("mechanisms",),
        ("mechanisms", "--json"),
        ("--help",),
        ("--version",),
    ],
    ids=lambda command: "-".join(map(str, command)),
)
def test_a_full_device_is_a_failure(program, trained, text, command):
    done = full(program, *({"RUN": trained, "TEXT": text}.get(word, word) for word in command))
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1] in (
        "cortado: [stdout] the output could not be written: is the disk full?",
        "cortado: [generate] the standard output can't be written to",  # noticed while writing
    )
