"""The program: `cortado ...` and `python -m cortado ...`."""

from __future__ import annotations

import os
import sys
import typing

import cortado


def main() -> typing.NoReturn:
    path = str(cortado.program())
    os.execv(path, [path, *sys.argv[1:]])  # signals and exit codes are the program's own


if __name__ == "__main__":
    main()
