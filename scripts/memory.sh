#!/usr/bin/env bash
# What memories of one model cost and give: perplexity of a text, and needles found in another, by bytes
# (docs/one-memory.md).
#
#   scripts/memory.sh CORTADO SOFTMAX MACCHIATO LOLCATS TEXT HAYSTACK RESULTS [LENGTH] [SAMPLES]
#
# CORTADO is the program; SOFTMAX, MACCHIATO and LOLCATS are runs: the imported model, and the two that data/smollm2 makes
# of it. TEXT is predicted, needles are hidden in HAYSTACK, both at LENGTH tokens (4096), SAMPLES needles (30). RESULTS is
# a folder for both commands' lines of JSON: what they hold is not asked again. scripts/memory_picture.py draws them.
set -euo pipefail
cortado=$1
softmax=$2
macchiato=$3
lolcats=$4
text=$5
haystack=$6
results=$7
length=${8:-4096}
samples=${9:-30}

mkdir -p "$results"
ask() {
  label=$1
  shift
  common=(--label "$label" --weights int8 --lengths "$length")
  "$cortado" eval ppl "$@" "${common[@]}" --no-bos --data "$text" --tokens 8192 --out "$results/ppl.jsonl" >/dev/null
  "$cortado" eval niah "$@" "${common[@]}" --tasks single_2 --haystack "$haystack" --samples "$samples" --out "$results/niah.jsonl" >/dev/null
}

ask softmax "$softmax"
for window in 129 384 768; do ask "window $window" "$softmax" --memory window --window "$window"; done
for sizes in "64 64" "64 256" "64 640"; do
  read -r chunk cache <<<"$sizes"
  ask "LoLA $chunk, $cache" "$lolcats" --memory lola --chunk "$chunk" --cache "$cache"
done
for cache in 0 32 64 128 256 512; do ask "Macchiato, $cache" "$macchiato" --memory macchiato --cache "$cache"; done
