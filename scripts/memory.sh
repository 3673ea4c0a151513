#!/usr/bin/env bash
# Measures memories of one model: perplexity of a text, and needles found in another, by the memory's bytes
# (docs/one-memory.md).
#
#   scripts/memory.sh CORTADO SOFTMAX MACCHIATO LOLCATS TEXT HAYSTACK RESULTS [LENGTH] [SAMPLES]
#
# CORTADO is the program. SOFTMAX, MACCHIATO and LOLCATS are runs: the imported model, and its two conversions of data/smollm2.
# TEXT is predicted, and SAMPLES needles (30) are hidden in HAYSTACK, both at LENGTH tokens (4096). RESULTS is a folder for
# the results of both commands, which are not measured again. scripts/memory_picture.py draws them.
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
