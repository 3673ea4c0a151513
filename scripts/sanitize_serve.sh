#!/usr/bin/env bash
# Runs the server's C++ tests under sanitizers, in minutes: threads and their memory are what src/cortado/serve adds.
#
#   scripts/sanitize_serve.sh [thread|address ...]        (both; after `make build`)
#
# Only the layer and its tests are compiled with the sanitizer. Everything else comes from the release build, whose libraries
# are not instrumented, as libtorch is not. `make asan` instruments everything.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/release
torch=$(ls -d .venv/lib/python3*/site-packages/torch)
for part in bin/serve_tests CMakeFiles/cortado.dir/Unity/unity_serve_cxx.cxx; do
  [ -e $build/$part ] || { echo "[sanitize] there is no $build/$part: run \`make build\` (with CORTADO_UNITY=ON)" >&2; exit 2; }
done
[ $# -gt 0 ] || set -- thread address

# Compile options that only the server's files have in the release build (the grammar library's folders).
own_flags() {
  python3 - $build/build.ninja <<'P'
import re, sys
unit = r"build CMakeFiles/cortado.dir/Unity/unity_serve_cxx.cxx.o:.*?\n((?:  .*\n)+)"
variables = re.search(unit, open(sys.argv[1]).read())[1]
print(*re.findall(r"^  (?:DEFINES|INCLUDES) = (.*)$", variables, re.MULTILINE))
P
}

for sanitizer in "$@"; do
  case $sanitizer in
    thread) flags=-fsanitize=thread ;;
    address) flags="-fsanitize=address,undefined -fno-sanitize-recover=undefined" ;;
    *) echo "[sanitize] thread or address, not $sanitizer" >&2; exit 2 ;;
  esac
  out=build/sanitize/$sanitizer
  mkdir -p $out
  compile="g++ $flags -O1 -g1 -fno-omit-frame-pointer -DNDEBUG -fPIC -fopenmp -std=c++20 -include src/cortado/pch.h $(own_flags)"
  $compile -c $build/CMakeFiles/cortado.dir/Unity/unity_serve_cxx.cxx -o $out/serve.o
  $compile -DGTEST_HAS_PTHREAD=1 -c $build/CMakeFiles/serve_tests.dir/Unity/unity_serve_cxx.cxx -o $out/tests.o
  grammar=$(ls $build/libcortado_xgrammar.a 2>/dev/null || true)
  g++ $flags -fopenmp $out/tests.o $out/serve.o -o $out/serve_tests -L"$torch/lib" \
    -Wl,-rpath,"$PWD/$torch/lib:$PWD/$build/lib" $build/lib/libcortado.so -lgtest_main -lgtest $build/lib/libcortado_ops.so \
    $grammar -lhiredis -lpcre2-8 -ltorch -ltorch_cpu -lc10 -lhwy
  # Sanitizers can't see the locks of libtorch and OpenMP, and refuse the way in which SentencePiece is opened.
  printf 'called_from_lib:libtorch_cpu.so\ncalled_from_lib:libgomp.so\n' > $out/suppressions
  OMP_NUM_THREADS=1 TSAN_OPTIONS="suppressions=$out/suppressions ignore_noninstrumented_modules=1 detect_deadlocks=0" \
    ASAN_OPTIONS=detect_leaks=0:detect_container_overflow=0:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1 \
    $out/serve_tests --gtest_brief=1 --gtest_filter=-ConstrainedAnswers.MayTakeAnyTokenThatFits
done
