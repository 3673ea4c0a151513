#!/usr/bin/env python3
"""Writes the texts of all GPU kernels into a C++ source; the library compiles them with NVRTC when it needs them. The texts
are those of every kernel*.cu, with includes expanded.

    embed_cuda.py OUT.cpp"""

import pathlib
import sys

import cuda_report

PIECE = 8000  # characters per literal: compilers limit its length; neighbouring literals are joined


def literal(text):
    pieces = [text[i : i + PIECE] for i in range(0, len(text), PIECE)]
    return "\n".join(f'R"cuda({piece})cuda"' for piece in pieces)


def main():
    rows = [f'      {{"{path.parent.name}/{path.stem}", {literal(cuda_report.whole_text(path, set()))}}},'
            for path in cuda_report.kernel_files()]  # fmt: skip
    text = '#include "cortado/primitives/cuda/runtime.h"\n\nnamespace cortado::cuda {\n\nconst std::vector<Source>& sources() {\n'
    text += "  static const std::vector<Source> all = {\n" + "\n".join(rows) + "\n  };\n  return all;\n}\n\n}  // namespace cortado::cuda\n"
    out = pathlib.Path(sys.argv[1])
    if not out.is_file() or out.read_text() != text:
        out.write_text(text)


if __name__ == "__main__":
    main()
