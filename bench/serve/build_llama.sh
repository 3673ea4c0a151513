#!/usr/bin/env bash
# Builds llama.cpp's llama-server from the sources in llama-cpp-python's package on PyPI.
#
#   bench/serve/build_llama.sh [FOLDER]            # default build/bench-serve; prints the program's path
#   BENCH_JOBS=1 bench/serve/build_llama.sh        # one compiler at a time
#
# The version is that of requirements-bench.txt, so that both benchmarks measure the same llama.cpp. Ten to twenty
# minutes on two cores, at a low priority; nothing is done if the program is there. Without CURL and TLS: the server is
# measured, not its downloads. Without OpenMP and AMX, as scripts/bench_environment.sh has it (and says why).
set -euo pipefail
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0"
  exit 0
fi
cd "$(dirname "$0")/../.."
folder=${1:-build/bench-serve}
python=${PYTHON:-.venv/bin/python}
program=$folder/llama/bin/llama-server
say() { echo "[bench-serve] $*" >&2; }

if [ -x "$program" ]; then
  echo "$program"
  exit 0
fi
mkdir -p "$folder"
required=$(grep '^llama-cpp-python==' requirements-bench.txt)
if [ ! -d "$folder/source/vendor/llama.cpp" ]; then
  say "downloading $required"
  "$python" -m pip download -qq --disable-pip-version-check --no-binary :all: --no-deps -d "$folder" "$required"
  rm -rf "$folder/source"
  mkdir "$folder/source"
  tar -xzf "$folder"/llama_cpp_python-*.tar.gz -C "$folder/source" --strip-components 1
fi

flags=(-DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DGGML_OPENMP=OFF -DBUILD_SHARED_LIBS=OFF)
flags+=(-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF)
if [ "$(uname -m)" = x86_64 ]; then
  flags+=(-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8)
fi
say "compiling llama-server, the log is $folder/build.log"
nice -n 10 cmake -G Ninja -S "$folder/source/vendor/llama.cpp" -B "$folder/llama" "${flags[@]}" >"$folder/build.log" 2>&1 ||
  { tail -n 20 "$folder/build.log" >&2 && exit 1; }
# Ninja's lines show the progress; they also go to a terminal.
if ! nice -n 10 cmake --build "$folder/llama" --target llama-server -j "${BENCH_JOBS:-2}" 2>&1 |
  tee -a "$folder/build.log" | { grep --line-buffered -oE '^\[[0-9]+/[0-9]+\]' || true; } |
  awk 'NR % 20 == 1' >&2; then
  tail -n 20 "$folder/build.log" >&2
  exit 1
fi
echo "$program"
