#!/usr/bin/env bash
# Creates the Python environment of bench/peers.
#
#   scripts/bench_environment.sh PYTHON FOLDER
#
# PYTHON is the environment that has torch; its packages are found after the new environment's own. llama-cpp-python is built from source
# with ggml's own threads instead of OpenMP's, which takes five to ten minutes on two cores; BENCH_JOBS=1 builds with a single job. It is built without
# AMX, because version 0.3.36 crashes with an illegal instruction (ldtilecfg in ggml_backend_amx_mul_mat) on a virtual machine with AMX.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1 folder=$2

say() { echo "[bench-peers] $*" >&2; }

say "making $folder"
rm -rf "$folder"
"$python" -m venv "$folder"
purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
"$python" -c "$purelib" >"$("$folder/bin/python" -c "$purelib")/torch_from.pth"
export PIP_DISABLE_PIP_VERSION_CHECK=1
export CMAKE_BUILD_PARALLEL_LEVEL=${BENCH_JOBS:-$(nproc)} CMAKE_ARGS="-DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF"
if [ "$(uname -m)" = x86_64 ]; then
  CMAKE_ARGS+=" -DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8"
fi
# Prevents the use of a cached wheel that was built with other flags.
"$folder/bin/pip" cache remove -q llama_cpp_python 2>/dev/null || true
say "installing requirements-bench.txt (llama-cpp-python is compiled: minutes)"
"$folder/bin/pip" install -qq -r requirements-bench.txt
touch "$folder/stamp"
