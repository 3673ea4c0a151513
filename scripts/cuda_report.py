#!/usr/bin/env python3
"""Compiles every GPU kernel (src/cortado/*/*/kernel*.cu) without a GPU, with NVRTC from its wheel (`pip install
nvidia-cuda-nvrtc`). Prints the registers, shared memory and spills of each kernel for every architecture and variant. Fails
if a kernel spills registers.

    cuda_report.py [--json] [--arch sm_90a,...] [--quick sm_80,...] [--variants N] [FILE ...]

A file lists its variants in a comment: "// Variants: KEYS=64 | KEYS=64 CORTADO_HALF"."""

import argparse
import ctypes
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ARCHITECTURES = ["sm_80", "sm_90a", "sm_120"]
INCLUDE = re.compile(r'^#include "(cortado/[^"]*)"', re.MULTILINE)


class Wrong(Exception):
    pass


def nvrtc():
    """Loads NVRTC from its wheel or from a CUDA build of torch, otherwise from the system."""
    for place in map(pathlib.Path, sys.path):
        for found in sorted(place.glob("nvidia/*/lib/libnvrtc.so.*"), reverse=True):
            for beside in found.parent.glob("libnvrtc-builtins.so.*"):  # older versions find it only if it is loaded already
                ctypes.CDLL(str(beside))
            return ctypes.CDLL(str(found))
    try:
        return ctypes.CDLL("libnvrtc.so")
    except OSError:
        raise Wrong("there is no libnvrtc: pip install nvidia-cuda-nvrtc") from None


def kernel_files():
    return sorted((ROOT / "src/cortado").glob("*/**/kernel*.cu"))


def whole_text(path, seen):
    """Returns a source with its includes expanded, each once, and without the emulation's header."""

    def included(match):
        name = match[1]
        if name in seen or name.endswith("/emulate.h"):
            return ""
        seen.add(name)
        return whole_text(ROOT / "src" / name, seen)

    return INCLUDE.sub(included, path.read_text()).replace("#pragma once", "")


def text_of(library, program, kind):
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{kind}")(program, buffer)
    return buffer.raw[: size.value]


def compile_text(library, name, text, architecture, variant, quick=False):
    """Returns the binary and the output of ptxas. Raises Wrong with the first error."""
    program = ctypes.c_void_p()
    if library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None):
        raise Wrong(f"{name}: NVRTC takes no source")
    words = ["--std=c++17", "-default-device", f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
    words += [f"-D{word}" for word in variant.split()] + ["--Ofast-compile=max"] * quick
    options = (ctypes.c_char_p * len(words))(*map(str.encode, words))
    failed = library.nvrtcCompileProgram(program, len(words), options)
    log = text_of(library, program, "ProgramLog").decode().strip("\0")
    if failed:
        first = next((line for line in log.splitlines() if "error" in line), log.strip())
        raise Wrong(f"{name} for {architecture}, {variant or 'as it is'}: {first}")
    code = text_of(library, program, "CUBIN")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return code, log


def compiled(library, name, text, architecture, variant, quick):
    """Yields the resources of each kernel in the file."""
    code, log = compile_text(library, name, text, architecture, variant, quick)
    for part in log.split("Compiling entry function '")[1:]:
        number = lambda pattern, part=part: int(found[1]) if (found := re.search(pattern, part)) else 0
        yield {"kernel": part.partition("'")[0], "file": name, "architecture": architecture, "variant": variant,
               "registers": number(r"Used (\d+) registers"), "spilled": number(r"(\d+) bytes spill stores"),
               "stack": number(r"(\d+) bytes stack frame"), "shared": number(r"(\d+) bytes smem"), "bytes": len(code)}  # fmt: skip


def report(files, architectures, quick, most):
    library = nvrtc()
    for path in files:
        text = whole_text(path, set())
        variants = re.search(r"^// Variants: ((?:.*\|\n//)*.*)$", text, re.MULTILINE)
        for architecture in [*architectures, *quick]:
            for variant in (variants[1].replace("\n//", "").split("|") if variants else [""])[:most]:
                yield from compiled(library, path.name, text, architecture, variant.strip(), architecture in quick)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--arch", type=lambda text: text.split(","), default=ARCHITECTURES)
    parser.add_argument("--quick", type=lambda text: text.split(","), default=[],
                        help="architectures for which files are only compiled, without a report")
    parser.add_argument("--variants", type=int, help="largest number of variants per file (default: all)")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    files = [path.resolve() for path in chosen.files] or kernel_files()
    try:
        rows = list(report(files, chosen.arch, chosen.quick, chosen.variants))
    except (Wrong, OSError) as error:
        sys.exit(f"[cuda-report] {error}")
    if chosen.json:
        print(json.dumps(rows))
    else:
        header = ["kernel", "architecture", "variant", "registers", "spilled", "stack", "shared", "bytes"]
        cells = [header, *([str(row[key]) for key in header] for row in rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
        for row in cells:
            placed = [cell.rjust(width) if i > 2 else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
            print("  ".join(placed).rstrip())
    if spilled := sorted({row["kernel"] for row in rows if (row["spilled"] or row["stack"]) and row["architecture"] not in chosen.quick}):
        sys.exit(f"[cuda-report] registers do not suffice for {', '.join(spilled)}")


if __name__ == "__main__":
    main()
