"""Runs the program: `cortado ...`, `python -m cortado ...`, or under torchrun `torchrun ... -m cortado train ...`."""

from __future__ import annotations

import os
import sys
import typing

import cortado


def main() -> typing.NoReturn:
    path = str(cortado.program())
    if sys.argv[1:3] == ["bench", "scale"]:  # implemented in Python because it starts Python processes
        from cortado import _scale

        sys.exit(_scale.main(sys.argv[3:]))
    if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        from cortado import _ranks

        sys.exit(_ranks.run([path, *sys.argv[1:]]))
    os.execv(path, [path, *sys.argv[1:]])  # replaces this process, so signals and exit codes are the program's own


if __name__ == "__main__":
    main()
