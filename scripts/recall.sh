#!/usr/bin/env bash
# Measures retrieval of memories: runs RULER's S-NIAH-1 on SmolLM2 with every memory that docs/linearize.md compares.
#
#   scripts/recall.sh CORTADO SOFTMAX LINEAR RESULTS [LENGTH:SAMPLES ...]
#   HAYSTACK=english.txt TASKS=single_2 scripts/recall.sh CORTADO SOFTMAX LINEAR RESULTS 512:30       # another of its tasks
#
# CORTADO is the program; SOFTMAX and LINEAR are runs: the imported model and the converted one. RESULTS is the file to which
# `cortado eval niah` appends; existing results are not measured again. Prints the table of all results.
set -euo pipefail
cortado=$1
softmax=$2
linear=$3
results=$4
shift 4
parts=("$@")
questions=(--tasks "${TASKS:-single_1}" ${HAYSTACK:+--haystack "$HAYSTACK"})
[ $# -gt 0 ] || parts=(512:100 1024:100 2048:100 4096:100)

ask() {
  label=$1
  shift
  "$cortado" eval niah "$@" --label "$label" --weights int8 "${questions[@]}" --lengths "$length" --samples "$samples" --out "$results" >/dev/null
}

for part in "${parts[@]}"; do
  length=${part%:*}
  samples=${part#*:}
  ask softmax "$softmax"
  for window in 64 192 384 768; do
    ask "window $window" "$softmax" --memory window --window "$window"
  done
  ask "LoLCATs 64" "$linear" --memory lolcats --layout sliding --window 64
  for sizes in "64 64" "128 128" "64 256" "256 256" "64 640"; do
    read -r chunk cache <<<"$sizes"
    ask "LoLA $chunk, $cache" "$linear" --memory lola --chunk "$chunk" --cache "$cache"
  done
done
"$cortado" eval niah "$softmax" --label softmax --weights int8 "${questions[@]}" --lengths "${parts[0]%:*}" --samples "${parts[0]#*:}" --out "$results"
