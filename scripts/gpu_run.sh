#!/usr/bin/env bash
# Runs the tests and measurements of this folder, which scripts/gpu_bundle.sh has made, on this machine's GPU.
#
#   run.sh OUT [STEP ...]     doctor tests python operators steps decode models train cpu cores sanitize profile: all steps, or some
set -uo pipefail
mkdir -p "${1:?a folder for what is found}"
out=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")"
python=${PYTHON:-python3}
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
libraries=$(find "$(dirname "$torch")/nvidia" -name lib -type d 2>/dev/null | tr '\n' ':')
export LD_LIBRARY_PATH=$PWD/lib:$torch/lib:$libraries${LD_LIBRARY_PATH:-}
export CORTADO_OPS=$PWD/lib/libcortado_ops.so CORTADO_BUILD=$PWD CORTADO_SHARE=$PWD PYTHONPATH=$PWD/python PYTHONUNBUFFERED=1
status=0

timed() { # SECONDS NAME COMMAND...
  local limit=$1 name=$2 begin=$SECONDS
  shift 2
  echo "== $name"
  timeout "$limit" "$@" >"$out/$name.log" 2>&1 || { echo "   failed: $?"; status=1; }
  echo "   $((SECONDS - begin)) s"
}

run_doctor() { timed 150 doctor bin/cortado doctor --json; }
run_tests() {
  timed "${TESTS_SECONDS:-300}" tests env OMP_NUM_THREADS=2 "$python" -m pytest -q -n 8 -p no:cacheprovider --tb=short -o faulthandler_timeout=60 tests/cuda
  tail -n 3 "$out/tests.log"
}
run_python() {
  timed "${PYTHON_SECONDS:-240}" python env CORTADO_DEVICE=cuda OMP_NUM_THREADS=2 "$python" -m pytest -q -n 8 -p no:cacheprovider --tb=short tests/python
  tail -n 3 "$out/python.log"
}
run_operators() { timed 240 operators "$python" bench/cuda/operators.py --json "$out/operators.json" --seconds 0.1 --profile; }
run_profile() { # Nsight Compute's counters for each kernel of a call
  local ncu
  ncu=$(command -v ncu || ls -d /opt/nvidia/nsight-compute/*/ncu | tail -n 1)
  timed 120 profile "$ncu" --clock-control none --set full -f -o "$out/profile" "$python" bench/cuda/operators.py --once \
    --only "${PROFILE:-delta_scan,latte,elementwise_scan,blurry_window}"
  "$ncu" -i "$out/profile.ncu-rep" --page raw --csv >"$out/profile.csv"
}
run_steps() { timed 60 steps "$python" bench/cuda/steps.py --json "$out/steps.json"; }
run_decode() { timed "${DECODE_SECONDS:-90}" decode "$python" bench/cuda/decode.py --json "$out/decode.json" --profile; }
run_models() { timed "${MODELS_SECONDS:-180}" models "$python" bench/cuda/models.py --json "$out/models.json" --profile; }

demo=(train configs/macchiato-demo.json --data data/tinyshakespeare.txt --stop-at 300 --quiet --overwrite
  --set training.evaluate_every=50)

run_cpu() {
  timed 200 train-cpu bin/cortado "${demo[@]}" --threads 8 --out /tmp/cpu
  cp /tmp/cpu/metrics.jsonl "$out/metrics-cpu.jsonl"
}

run_cores() {
  timed 120 cores bin/cortado bench ops --op gated_scan,delta_scan,elementwise_scan,latte,macchiato --heads 4 --tokens 4096,16384 \
    --threads "1,$(nproc)" --rounds 3 --quiet
  cat "$out/cores.log"
}

# The demo's first 300 steps on the GPU: alone, and in a group of one process, whose sums NCCL computes.
run_train() {
  timed 120 train-gpu bin/cortado "${demo[@]}" --out /tmp/gpu --device cuda
  timed 120 train-nccl "$python" -m torch.distributed.run --nproc-per-node 1 -m cortado "${demo[@]}" --out /tmp/nccl --device cuda
  timed 120 train-nccl-parts env CORTADO_PARTS=join "$python" -m torch.distributed.run --nproc-per-node 1 -m cortado "${demo[@]}" \
    --out /tmp/nccl-parts --device cuda --context-parallel 1
  timed 60 generate bin/cortado generate /tmp/gpu --prompt "ROMEO:" --n-tokens 300 --device cuda
  timed 60 train-bfloat16 bin/cortado "${demo[@]}" --out /tmp/bfloat16 --device cuda --dtype bfloat16
  for run in gpu bfloat16 nccl nccl-parts; do cp "/tmp/$run/metrics.jsonl" "$out/metrics-$run.jsonl"; done
}

run_sanitize() {
  local tool small='(latte and (state or steep)) or two_passes or macchiato or (delta and odd) or (short_conv and silu) or (window and 100)'
  for tool in memcheck racecheck; do
    timed "${SANITIZE_SECONDS:-150}" "sanitize-$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$python" -m pytest -q -x \
      -p no:cacheprovider tests/cuda -k "$small"
    tail -n 2 "$out/sanitize-$tool.log"
  done
}

(($#)) || set -- doctor tests python operators steps decode models train cpu cores sanitize profile
for step in "$@"; do
  "run_$step" || status=1
done
exit "$status"
