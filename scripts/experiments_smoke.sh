#!/bin/bash
# Runs every experiment at its smallest scale, to check that it works.   experiments_smoke.sh CORTADO [FOLDER]
set -eu
cortado=$1
out=${2:-$(mktemp -d)}
cd "$(dirname "$0")/.."
for file in experiments/*/*.json; do
  grep -q '"smoke"' "$file" || continue
  name=$(basename "$(dirname "$file")")/$(basename "$file" .json)
  "$cortado" sweep "$file" --scale smoke --out "$out/$name" --quiet > /dev/null
  if grep -v '"status":"done"' "$out/$name/results.jsonl"; then
    echo "[experiments] $file: not every run has ended well" >&2
    exit 1
  fi
  echo "$name: $(wc -l < "$out/$name/results.jsonl") runs"
done
[ $# -gt 1 ] || rm -r "$out"
