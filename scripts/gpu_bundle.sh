#!/usr/bin/env bash
# What a machine with a GPU and a torch, but neither compiler nor registry, needs to test and measure the operators: one folder.
#
#   scripts/gpu_bundle.sh FOLDER PYTHON     PYTHON has the torch of that machine, of the same version
#   FOLDER/run.sh [OUT]                     there: tests/cuda, then bench/cuda/operators.py, whose figures are left in OUT/bench.json
#
# Back here: python bench/cuda/operators.py --from-json bench.json --page docs/performance-cuda.md
set -euo pipefail
if (($# != 2)); then
  sed -n '2,7p' "$0" | cut -c3-
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$(command -v "$2") || { echo "[gpu-bundle] there is no $2" >&2; exit 1; }
cd "$(dirname "$0")/.."

version=$("$python" -c 'import torch; print(torch.__version__)')
build=build/gpu-bundle-$version
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCORTADO_TESTS=OFF "-DCORTADO_PYTHON=$python" >/dev/null
cmake --build "$build" --target cortado_ops -j "${JOBS:-$(nproc)}"
rm -rf "$folder/lib" "$folder/tests" "$folder/bench"
mkdir -p "$folder/lib" "$folder/tests" "$folder/bench"
strip -o "$folder/lib/libcortado_ops.so" "$build/lib/libcortado_ops.so"
for library in $(ldd "$build/lib/libcortado_ops.so" | sed -n 's/.*libhwy[^ ]* => \([^ ]*\).*/\1/p'); do
  cp -L "$library" "$folder/lib/"
done
cp -r tests/cuda "$folder/tests/"
cp -r bench/cuda "$folder/bench/"
find "$folder" -name __pycache__ -prune -exec rm -rf {} +
cat >"$folder/run.sh" <<'RUN'
#!/usr/bin/env bash
# Tests and measures the operators on the GPU that is here.
set -uo pipefail
mkdir -p "${1:-.}"
out=$(cd "${1:-.}" && pwd)
cd "$(dirname "$0")"
export LD_LIBRARY_PATH=$PWD/lib:${LD_LIBRARY_PATH:-} CORTADO_OPS=$PWD/lib/libcortado_ops.so PYTHONUNBUFFERED=1
python3 -m pytest -q -p no:cacheprovider tests/cuda 2>&1 | tee "$out/tests.log"
status=$?
python3 bench/cuda/operators.py --json "$out/bench.json" --seconds 0.2 || status=1
exit "$status"
RUN
chmod +x "$folder/run.sh"
echo "[gpu-bundle] $folder: built against torch $version; there, run.sh" >&2
