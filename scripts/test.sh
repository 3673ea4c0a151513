#!/usr/bin/env bash
# Runs the C++ and the Python tests side by side: Python's begin when the program exists, while the C++ tests are still compiled.
#   scripts/test.sh BUILD PYTHON JOBS quick|all
# Shows Python's tests as they run, and then the report of the C++ tests. Exits with 1 if any failed.
# `make test` is "quick", `make test-all` is "all".
set -uo pipefail
cd "$(dirname "$0")/.."
build=$1 python=$2 jobs=$3 which=$4
log=$build/cpp-tests.log
export OMP_NUM_THREADS=1 # many small programs run at a time, with one thread each
of_python=() of_cpp=() target=all
[[ $which == all ]] || { of_python=(-m "not slow") of_cpp=(--label-exclude slow) target=quick_tests; }

# Descriptor 3 is the output that the user sees.
exec 3>&2
cpp_tests() {
  if cmake --build "$build" -j "$jobs" --target "$target" && ctest --test-dir "$build" -j "$jobs" --output-on-failure ${of_cpp[@]+"${of_cpp[@]}"}; then
    echo "[test] C++: passed" >&3
  else
    echo "[test] C++: FAILED, see $log" >&3
    return 1
  fi
}

# Runs in a process group of its own, which can be stopped as a whole.
set -m
cpp_tests </dev/null >"$log" 2>&1 &
cpp=$!
set +m
trap 'kill -TERM -- "-$cpp" 2>/dev/null' EXIT
trap 'exit 130' INT TERM

# Uses one more Python process than processors, because some wait for others.
"$python" -m pytest -q -n $((jobs + 1)) --durations=30 ${of_python[@]+"${of_python[@]}"} tests
python_failed=$?
wait "$cpp"
cpp_failed=$?
trap - EXIT
if grep -q '^Test project' "$log"; then
  sed -n '/^Test project/,$p' "$log" | grep -v '^ *Start '
else
  tail -n 100 "$log" # the C++ tests do not compile
fi
((!python_failed && !cpp_failed)) || { echo "[test] FAILED:$( ((!cpp_failed)) || echo " C++")$( ((!python_failed)) || echo " Python")" >&2; exit 1; }
