#!/usr/bin/env bash
# Checks that two builds of the program train identically, bit for bit. Both train small models in every way, with a stop and
# a --resume in the middle, one after the other on the same paths. Then compares every tensor, every loss and every file
# that contains no times. The exit code is 1 if something differs.
#
#   scripts/same_bits.sh OLD_PROGRAM NEW_PROGRAM
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: scripts/same_bits.sh OLD_PROGRAM NEW_PROGRAM" >&2; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
# Without this, MKL's products depend on the matrices' addresses, and two runs of one program differ.
export MKL_CBWR=COMPATIBLE
# Otherwise a timing chooses the library for matrix products, which may differ on a busy machine.
export CORTADO_MATMUL=blas
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 60000 "$here/data/tinyshakespeare.txt" > "$work/text.txt"

cat > "$work/model.json" <<'JSON'
{"dim": 32, "heads": 4, "layers": 3, "dropout": 0.1, "positions": "rotary", "mixer": {"mixer": "softmax"},
 "feed_forward": {"type": "swiglu", "dim": 48},
 "training": {"tokenizer": "byte", "batch": 3, "context": 40, "accumulate": 3, "steps": 14, "warmup": 3, "clip": 0.5,
              "learning_rate": 0.01, "evaluate_every": 5, "evaluate_batches": 4, "log_every": 1}}
JSON

# Runs twice, with a stop at step 7 and a resumption: twice COMMAND OUT OPTION...
stopped() {
  local command=$1 out=$2
  shift 2
  "$program" "$command" "$@" --out "$out" --quiet --threads 1 --stop-at 7 > "$out.log" 2>&1 || [ $? -eq 130 ] ||
    { cat "$out.log" >&2; exit 1; }
  "$program" "$command" --resume --out "$out" --quiet --threads 1 > "$out.log" 2>&1 || { cat "$out.log" >&2; exit 1; }
}

all_runs() {
  program=$1
  local runs="$work/runs"
  mkdir "$runs"
  local data=(--data "$work/text.txt")
  stopped train "$runs/language" "$work/model.json" "${data[@]}"
  stopped train "$runs/packed" "$work/model.json" "${data[@]}" --set mixer.mixer=macchiato --set mixer.latents=8 \
    --set mixer.window=9 --set training.packed=true --set 'training.document_separator="\n\n"' \
    --set training.dtype=bfloat16 --set training.schedule=linear
  stopped train "$runs/adapters" "$runs/language" "${data[@]}" --lora 2 --set training.steps=10
  local short=("${data[@]}" --context 32 --batch 2 --accumulate 3 --evaluate-every 2 --evaluation-chunks 3 --seed 5)
  stopped linearize "$runs/lolcats" "$runs/language" "${short[@]}" --window 8 --tokens 1000 --lora-tokens 900 \
    --dtype float32 --weights plain
  stopped linearize "$runs/int8" "$runs/language" "${short[@]}" --window 8 --tokens 1700 --weights int8 --dtype float32
  stopped linearize "$runs/retrofit" "$runs/language" "${short[@]}" --method macchiato --window 9 --tokens 700 \
    --cross-entropy-tokens 700 --lora-tokens 600 --dtype bfloat16 --weights plain
  mv "$runs" "$work/$2"
}
all_runs "$1" old
all_runs "$2" new

python3 - "$work/old" "$work/new" <<'PYTHON'
import json
import pathlib
import struct
import sys

CLOCKS = {"seconds", "tokens_per_second"}


def timeless(value):
    """A value without what a clock decides; JSON within text is looked into."""
    if isinstance(value, str) and value.startswith(('{"', '[{"')):
        value = json.loads(value)
    if isinstance(value, dict):
        return {key: timeless(entry) for key, entry in value.items() if key not in CLOCKS}
    return [timeless(entry) for entry in value] if isinstance(value, list) else value


def read(path):
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        about = {key: value for key, value in header.pop("__metadata__", {}).items() if key not in ("checksum", "matmul")}
        return header, timeless(about), data[8 + size :]
    if path.suffix == ".jsonl":
        return [timeless(json.loads(line)) for line in data.splitlines()]
    return timeless(json.loads(data)) if path.suffix == ".json" else data


def no_less(old, new):
    """Whether `new` has all that `old` has: a newer program may write more, never anything else."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and no_less(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(no_less, old, new))
    return old == new


def files(root):
    return sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file() and path.suffix != ".log")


old, new = map(pathlib.Path, sys.argv[1:])
names = sorted(set(files(old)) | set(files(new)))
different, losses = 0, 0
for name in names:
    there = [root / name for root in (old, new)]
    same = all(path.exists() for path in there)
    if same and name.suffix == ".jsonl":
        left, right = map(read, there)
        losses += sum("loss" in line or "evaluation_loss" in line or "validation_loss" in line for line in left)
        same = no_less(left, right)
    elif same and name.suffix == ".json":
        same = no_less(*map(read, there))
    elif same:
        same = read(there[0]) == read(there[1])
    if not same:
        different += 1
        print("differs:", name)
print(f"{len(names)} files, {losses} lines of losses: {different} files differ")
sys.exit(different > 0)
PYTHON
