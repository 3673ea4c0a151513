#!/usr/bin/env bash
# Runs the checks that are too long for `make test-all` one after the other, also after a failure, and prints a table at the end.
#   scripts/check_all.sh [STEP...]      all of them, or those named
# The output of a step is in build/check-all/STEP.log. Exits with 1 if a step failed.
set -uo pipefail
cd "$(dirname "$0")/.."
JOBS=${JOBS:-$(nproc)}
MUTANT_SEED=${MUTANT_SEED:-1}
MUTANTS=${MUTANTS:-20}
logs=build/check-all
mkdir -p "$logs"

asan() { make asan; }
tsan() { make tsan; }
serve() { scripts/sanitize_serve.sh; } # the server's threads and memory
neon() { make neon; }
cuda_report() { make cuda-report; }    # the kernels for GPUs, every architecture and variant
experiments() { # each is run at its smallest scale and parsed at the others
  make experiments-smoke && CORTADO_SCALES=smoke,paper .venv/bin/python -m pytest -q tests/cli/test_sweep.py -k every_experiment_loads
}
clients() { make test-clients; }
web() { CORTADO_EVERY_LOOK=1 .venv/bin/python -m pytest -q tests/web -k as_wide_as; } # the page in every width and colour scheme
clang() { # compiles every file with Clang, with warnings as errors
  cmake --preset release -B build/clang -DCMAKE_CXX_COMPILER="${CLANG:-clang++-16}" -DCORTADO_PYTHON:FILEPATH="$PWD/.venv/bin/python" &&
    cmake --build build/clang -j "$JOBS"
}
tidy() { make tidy; } # clang-tidy's bugprone and performance checks
newest_torch() { # build and tests with PyPI's newest torch
  local venv=build/newest-torch
  { [ -x $venv/bin/python ] || python3 -m venv $venv; } &&
    $venv/bin/python -m pip install -q --upgrade --disable-pip-version-check torch numpy &&
    make test-all PYTHON_TORCH="$PWD/$venv/bin/python"
}
mutants() { # a sample; docs/results.md has the score of a hundred
  .venv/bin/python scripts/mutate.py --seed "$MUTANT_SEED" --count "$MUTANTS" --jobs "$JOBS"
}
deletions() { scripts/check_deletions.sh; } # deletes mechanisms, and builds and tests the rest
same_bits() { scripts/same_bits.sh; }      # compares losses, checkpoints and states with the previous version

all=(asan tsan serve neon cuda_report experiments clients web clang tidy newest_torch mutants deletions same_bits)
(($#)) || set -- "${all[@]}"
failed=0
table=$(printf '%-14s %-8s %8s\n' step result seconds)
for step; do
  if ! declare -F "$step" >/dev/null; then
    echo "[check-all] no step \"$step\"; there are: ${all[*]}" >&2
    exit 2
  fi
  script=$(declare -f "$step" | grep -o 'scripts/[a-z_]*\.sh' | head -1)
  if [ -n "$script" ] && [ ! -x "$script" ]; then
    table+=$'\n'$(printf '%-14s %-8s %8s   %s' "$step" "not run" - "$script is not there")
    continue
  fi
  echo "[check-all] $step: $logs/$step.log"
  start=$SECONDS result=passed
  "$step" >"$logs/$step.log" 2>&1 || result=FAILED failed=1
  table+=$'\n'$(printf '%-14s %-8s %8d   %s' "$step" $result $((SECONDS - start)) "$(tail -n 1 "$logs/$step.log" | cut -c1-100)")
done
echo "$table"
exit $failed
