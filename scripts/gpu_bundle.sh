#!/usr/bin/env bash
# What a machine with a GPU and a torch, but neither compiler nor registry, needs to test and measure what is here: one folder.
#
#   scripts/gpu_bundle.sh FOLDER PYTHON     PYTHON has the torch of that machine, of the same version
#   FOLDER/run.sh OUT [STEP ...]            there: all steps, or some of those below; what they find is left in OUT
#
#   doctor    what the program says of the GPU, every operator and mixer tried
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
# What the libraries need beside torch's, libc's and the compiler's.
site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
ldd "$build"/lib/*.so "$build/bin/cortado" | sed -n 's/.*=> \(\/[^ ]*\).*/\1/p' | sort -u |
  grep -v -e "^$site/" -e "/libcortado" -e '/lib\(c\|m\|dl\|rt\|util\|pthread\|stdc++\|gcc_s\)\.so' |
  while read -r library; do cp -L "$library" "$folder/lib/"; done
cp -r tests/cuda tests/python tests/conftest.py tests/preloaded.py "$folder/tests/"
cp --parents src/cortado/mechanisms/*/examples.json "$folder/" # which mechanisms there are
cp -r bench/cuda "$folder/bench/"
cp -r python/cortado "$folder/python/"
cp configs/*.json "$folder/configs/"
cp data/tinyshakespeare.txt "$folder/data/"
cp CMakeLists.txt "$folder/" # has the version
cp scripts/gpu_run.sh "$folder/run.sh"
find "$folder" -name __pycache__ -prune -exec rm -rf {} +
echo "[gpu-bundle] $folder: built against torch $version; there, run.sh" >&2
