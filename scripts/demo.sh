#!/usr/bin/env bash
# Trains a small Latte-Macchiato on Tiny Shakespeare and shows what it can do.
#
#   scripts/demo.sh CORTADO FOLDER STEPS CHARACTERS
#
# CORTADO is the program. Data and run are written to FOLDER, which is deleted first. FOLDER/trained exists once the model is trained.
# The model is evaluated on the last CHARACTERS characters of the text.
set -euo pipefail
cd "$(dirname "$0")/.."
cortado=$1
folder=$2
steps=$3
characters=$4
run=$folder/run
text=data/tinyshakespeare.txt

title() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
show() { printf '$ %s %s\n' "$cortado" "$*"; }

rm -rf "$folder"
mkdir -p "$folder"

title "The text: Tiny Shakespeare, one token a character"
show prepare "$text" --tokenizer char --out "$folder/data"
"$cortado" prepare "$text" --tokenizer char --out "$folder/data"

title "The model"
show describe configs/macchiato-demo.json --vocabulary 65
"$cortado" describe configs/macchiato-demo.json --vocabulary 65

title "Training, about three minutes"
show train configs/macchiato-demo.json --data "$folder/data" --steps "$steps" --out "$run"
"$cortado" train configs/macchiato-demo.json --data "$folder/data" --steps "$steps" --out "$run"
touch "$folder/trained"

title "How well it predicts the last tenth of the text, which it has not seen"
tail -c "$characters" "$text" >"$folder/validation.txt"
show eval "$run" --text "$folder/validation.txt" --context 256,1024
"$cortado" eval "$run" --text "$folder/validation.txt" --context 256,1024

title "What it writes: 500 characters after \"ROMEO:\""
show generate "$run" --prompt "ROMEO:" --n-tokens 500 --temperature 0.8 --seed 1
"$cortado" generate "$run" --prompt "ROMEO:" --n-tokens 500 --temperature 0.8 --seed 1

title "The same speed and state 16,384 tokens later"
head -c 16384 "$text" >"$folder/prompt.txt"
show generate "$run" --prompt-file "$folder/prompt.txt" --n-tokens 500 --seed 1
"$cortado" generate "$run" --prompt-file "$folder/prompt.txt" --n-tokens 500 --seed 1 >/dev/null

printf '\nThe model is in %s. Let it write more:\n' "$run"
printf '  %s generate %s --prompt "JULIET:" --n-tokens 2000\n' "$cortado" "$run"
printf 'Open it in a browser, at http://127.0.0.1:8080, where it is served as OpenAI serves its models, too:\n'
printf '  make serve-demo\n'
