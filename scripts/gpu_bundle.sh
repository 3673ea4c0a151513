#!/usr/bin/env bash
# Makes a folder with everything for tests and measurements on a machine that has a GPU and torch, but no compiler and no registry.
#
#   scripts/gpu_bundle.sh FOLDER PYTHON     PYTHON has the same version of torch as that machine
#   FOLDER/run.sh OUT [STEP ...]            there: runs all steps, or some of those below; results are in OUT
#
#   doctor    `cortado doctor`: the GPU, with checks of every operator and mixer
#   tests     tests/cuda                    python    tests/python on the GPU     operators bench/cuda/operators.py
#   steps     bench/cuda/steps.py           models    bench/cuda/models.py        decode    bench/cuda/decode.py
#   train     300 steps, and with NCCL      cpu       the same 300 on the CPU     sanitize  compute-sanitizer on small shapes
#   cores     operators of few heads on one CPU core and on all
#
# Back here: python bench/cuda/operators.py --from-json OUT/operators.json --page docs/performance-cuda.md
set -euo pipefail
if (($# != 2)); then
  sed -n '2,13p' "$0" | cut -c3-
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$(command -v "$2") || { echo "[gpu-bundle] there is no $2" >&2; exit 1; }
cd "$(dirname "$0")/.."

version=$("$python" -c 'import torch; print(torch.__version__)')
build=${CORTADO_GPU_BUILD:-build/gpu-bundle-$version}
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCORTADO_TESTS=OFF "-DCORTADO_PYTHON=$python" >/dev/null
cmake --build "$build" -j "${JOBS:-$(nproc)}" >&2
for part in lib bin src tests bench python configs data; do rm -rf "${folder:?}/$part"; done
mkdir -p "$folder"/{lib,bin,tests,bench,python,configs,data}
for file in "$build"/lib/*.so "$build/bin/cortado"; do
  strip -o "$folder/$(basename "$(dirname "$file")")/$(basename "$file")" "$file"
done
# Libraries that are needed besides those of torch, libc and the compiler.
site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
ldd "$build"/lib/*.so "$build/bin/cortado" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u |
  grep -v -e "^$site/" -e "/libcortado" -e '/lib\(c\|m\|dl\|rt\|util\|pthread\|stdc++\|gcc_s\)\.so' |
  while read -r library; do cp -L "$library" "$folder/lib/"; done
cp -r tests/cuda tests/python tests/conftest.py tests/preloaded.py "$folder/tests/"
cp --parents src/cortado/mechanisms/*/examples.json "$folder/" # lists the mechanisms
cp -r bench/cuda "$folder/bench/"
cp -r python/cortado "$folder/python/"
cp configs/*.json "$folder/configs/"
cp data/tinyshakespeare.txt "$folder/data/"
cp CMakeLists.txt "$folder/" # contains the version
cp scripts/gpu_run.sh "$folder/run.sh"
find "$folder" -name __pycache__ -prune -exec rm -rf {} +
echo "[gpu-bundle] $folder: built against torch $version; there, run.sh" >&2
