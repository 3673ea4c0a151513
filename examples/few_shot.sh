#!/bin/bash
# Runs few-shot benchmarks of lm-evaluation-harness on any model and memory of this library: starts a server on a free
# port of 127.0.0.1, runs lm_eval's `local-completions` on it, and stops the server.
usage='few_shot.sh MODEL --tasks NAMES [options] [-- options of `cortado serve`]

  MODEL          a folder that `cortado train`, `import` or `linearize` made
  --tasks NAMES  of lm_eval, separated by commas: piqa,arc_easy,arc_challenge,hellaswag,winogrande,lambada_openai
  --shots N      examples before a question (default: as the task has it)
  --context N    tokens of a prompt at most; longer ones lose their beginning (default 4096)
  --limit N      questions of each task, for a try
  --include DIR  of tasks of your own (YAML)
  --out DIR      for results.json and every question with its answer

  few_shot.sh runs/lola --tasks mmlu --shots 5 -- --memory lola --chunk 64 --cache 64 --weights int8

Needs `pip install "lm-eval[api]"`, which fetches the questions when a task is asked for the first time. $CORTADO and
$PYTHON name another program and another Python.'
set -eu
fail() {
  echo "[few_shot] $*" >&2
  exit 2
}
# The last non-empty line of a log.
last() { grep -v '^[[:space:]]*$' "$1" | tail -1; }

case ${1:-} in
  -h | --help)
    echo "$usage"
    exit
    ;;
esac
model='' tasks='' context=4096 words=()
while [ $# -gt 0 ]; do
  case $1 in
    --)
      shift
      break
      ;;
    --tasks | --shots | --context | --limit | --include | --out)
      [ $# -gt 1 ] || fail "$1 needs a value"
      case $1 in
        --tasks) tasks=$2 ;;
        --context) context=$2 ;;
        --shots) words+=(--num_fewshot "$2") ;;
        --limit) words+=(--limit "$2") ;;
        --include) words+=(--include_path "$2") ;;
        --out) words+=(--output_path "$2" --log_samples) ;;
      esac
      shift 2
      ;;
    -*) fail "unknown option $1 (--help has them)" ;;
    *)
      [ -z "$model" ] || fail "one model, got $model and $1"
      model=$1
      shift
      ;;
  esac
done
[ -n "$model" ] || fail "name a model (--help)"
[ -n "$tasks" ] || fail "name the tasks: --tasks piqa,arc_easy"
case $context in '' | *[!0-9]*) fail "--context must be a number, got $context" ;; esac
python=${PYTHON:-python3}
"$python" -c 'import importlib.util as i, sys; sys.exit(i.find_spec("lm_eval") is None)' ||
  fail "$python has no lm_eval: pip install \"lm-eval[api]\""

work=$(mktemp -d)
server=
end() {
  [ -z "$server" ] || kill "$server" 2> /dev/null || true
  [ -z "$server" ] || wait "$server" 2> /dev/null || true
  rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
: > "$work/said" # it is read before the server's shell may have made it
"${CORTADO:-cortado}" serve "$model" --port 0 --log none "$@" > "$work/said" 2> "$work/errors" &
server=$!
until grep -q '^listening at' "$work/said"; do
  if ! kill -0 "$server" 2> /dev/null; then
    wait "$server" || code=$?
    server=
    last "$work/errors" >&2
    exit "${code:-1}"
  fi
  sleep 0.1
done
address=$(sed -n 's/^listening at //p' "$work/said")

# Uses the server's tokenizer, so that no other copy is needed.
arguments="model=$(basename "$model"),base_url=$address/v1/completions,tokenizer_backend=remote,tokenized_requests=True"
export OPENAI_API_KEY=${OPENAI_API_KEY:-none}
run() {
  "$python" -m lm_eval --model local-completions --model_args "$arguments,num_concurrent=1,max_length=$((context + 1))" \
    --tasks "$tasks" --batch_size 1 ${words[@]+"${words[@]}"}
}
code=0
if [ -t 2 ]; then # progress only on a terminal
  run 2> >(tee "$work/log" >&2) || code=$?
else
  run 2> "$work/log" || code=$?
fi
[ "$code" -eq 0 ] || echo "[few_shot] lm_eval: $(last "$work/log")" >&2
exit "$code"
