#!/usr/bin/env bash
# Training on several processes of this machine, restarted when one dies.
#   examples/torchrun.sh CONFIG RUN [PROCESSES] [more words for train]
# Each process has OMP_NUM_THREADS threads (1). With `pip install cortado`, PYTHONPATH is not needed.
set -euo pipefail
config=$1 run=$2 processes=${3:-2}
shift $(($# < 3 ? $# : 3))
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONPATH="$root/python${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
python=$root/.venv/bin/python
[[ -x $python ]] || python=python3
exec "$python" -m torch.distributed.run --standalone --nproc-per-node "$processes" --max-restarts 3 \
  -m cortado train "$config" --out "$run" "$@"
