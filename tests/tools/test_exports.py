"""The libraries export only their own names: nothing of libstdc++, torch or a library inside them."""

import re
import subprocess

import pytest

OWN = re.compile(r"(typeinfo for |typeinfo name for |vtable for |VTT for |guard variable for |(non-)?virtual thunk to )?cortado(::|_)")


def exported(library):
    listed = subprocess.run(["nm", "-D", "-C", "--defined-only", library], capture_output=True, text=True, check=True)
    return [line.split(" ", 2)[2] for line in listed.stdout.splitlines()]


@pytest.mark.parametrize("name", ["cortado_ops", "cortado", "cortado_commands", "cortado_sentencepiece"])
def test_nothing_but_own_names_is_exported(name, build):
    names = exported(build / f"lib/lib{name}.so")
    assert names
    assert not [symbol for symbol in names if not OWN.match(symbol)]
