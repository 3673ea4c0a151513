#!/usr/bin/env bash
# Runs clang-tidy with the checks of .clang-tidy; findings are errors.
#
#   scripts/tidy.sh [WORD...]     all production code, or the units and files whose path has one of the words: nn http base/
#
# It reads the compile commands of build/release (make configure), whose units hold several files each: one parse of torch's headers
# for all of them. A unit takes one to two minutes and 2 GB. JOBS: units at a time.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${CORTADO_BUILD:-build/release}
tool=.venv/bin/clang-tidy
[[ -x $tool ]] || { echo "[tidy] $tool is missing: make tidy installs it" >&2; exit 2; }

# Not tests, not generated texts, not XGrammar's sources, not kernels, which Highway compiles several times from one file.
units() {
  .venv/bin/python - "$build" "$@" <<'PYTHON'
import json, re, sys

build, words = sys.argv[1], sys.argv[2:]
for entry in json.load(open(f"{build}/compile_commands.json")):
    file = entry["file"]
    skipped = re.search(r"_test\.cpp$|_tests\.dir/|_(tests?|emulated|each)_cxx\.cxx$|xgrammar\.dir|unity_+build_|/kernel\.cpp$|/build/[^/]*/[^/]*\.cpp$|pch|/testing/", file)
    if not skipped and (not words or any(word in file for word in words)):
        print(file)
PYTHON
}

# GCC's commands: Clang does not know all of its options, and has no omp.h of its own.
mkdir -p build/tidy
sed 's/__malloc__ (omp_free)/__malloc__/' "$(g++ -print-file-name=include/omp.h)" > build/tidy/omp.h
options=(--quiet -p "$build" --extra-arg=-Wno-everything --extra-arg=-fno-openmp --extra-arg="-isystem$PWD/build/tidy")
files=$(units "$@")
[[ -n $files ]] || { echo "[tidy] no unit or file has \"$*\" in its path" >&2; exit 2; }
echo "[tidy] $(wc -l <<< "$files") units and files"
xargs -P "${JOBS:-1}" -I{} "$tool" "${options[@]}" {} <<< "$files" 2> >(grep -v ' warnings\? generated\.$\|^Suppressed\|^Use -' >&2)
