#!/usr/bin/env bash
# Checks that mechanisms can be deleted: for each, builds a copy of the committed sources without it
# (scripts/delete_mechanism.py) and runs its C++ and Python tests. Prints a table at the end.
#   scripts/check_deletions.sh [NAME...]     kda, lolcats and macchiato, or those named
# Logs and times are in build/deletions/. A name that has passed with the current commit is not run again. Exits with 1 if
# one failed. JOBS: compilers and tests at a time; CMAKE_FLAGS: more options for CMake.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
JOBS=${JOBS:-$(nproc)}
python=$root/.venv/bin/python
commit=$(git rev-parse HEAD)
logs=$root/build/deletions
mkdir -p "$logs"

steps=(delete configure build ctest pytest)
# All names use one worktree at a fixed place, and only changed files are written, so that objects of unchanged files are
# reused.
copy=$logs/source
restore() {
  # Without a .git of its own, git commands would act on the checkout around it.
  [[ -e $copy/.git ]] && git -C "$copy" checkout -q --force --detach "$commit" && git -C "$copy" clean -qffdx && return
  rm -rf "$copy" && git worktree prune && git worktree add --detach "$copy" "$commit"
}
delete() {
  restore && "$python" "$copy/scripts/delete_mechanism.py" "$name" && ln -sfn "$root/.venv" "$copy/.venv"
}
configure() {
  # shellcheck disable=SC2086
  cmake -S "$copy" --preset release -B "$logs/build" -DCORTADO_PYTHON:FILEPATH="$python" ${CMAKE_FLAGS:-}
}
build() { cmake --build "$logs/build" -j "$JOBS"; }
ctest() { OMP_NUM_THREADS=1 command ctest --test-dir "$logs/build" --output-on-failure -j "$JOBS"; }
pytest() { cd "$copy" && CORTADO_BUILD="$logs/build" OMP_NUM_THREADS=1 "$python" -m pytest -q -n "$JOBS" tests; }

check() { # checks one name; prints one line per step
  for step in "${steps[@]}"; do
    local start=$SECONDS
    echo "=== $step"
    if ! ("$step"); then
      echo "=== $step FAILED"
      echo "$name $commit FAILED at $step after $((SECONDS - began)) s" >"$logs/$name.result"
      return 1
    fi
    echo "=== $step: $((SECONDS - start)) s"
  done
  echo "$name $commit passed in $((SECONDS - began)) s" >"$logs/$name.result"
}

(($#)) || set -- kda lolcats macchiato
failed=0
for name; do
  if grep -qs "^$name $commit passed" "$logs/$name.result"; then continue; fi
  echo "[deletions] $name: $logs/$name.log"
  began=$SECONDS
  check >"$logs/$name.log" 2>&1 || failed=1
done
git worktree remove --force "$copy" 2>/dev/null
for name; do
  printf '%-14s %s\n' "$name" "$(cut -d' ' -f3- "$logs/$name.result")"
  grep -h '^=== .* s$' "$logs/$name.log" | sed 's/^===/   /'
done
exit $failed
