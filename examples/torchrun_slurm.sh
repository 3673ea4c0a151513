#!/usr/bin/env bash
# Training over several machines of a Slurm cluster: one launcher per machine; the first one is the rendezvous.
#   sbatch --nodes 2 examples/torchrun_slurm.sh CONFIG RUN [more words for train]
# CONFIG's data and RUN are on a disk that all machines see. PROCESSES: processes per machine (one per GPU, or 1).
#SBATCH --job-name=cortado
#SBATCH --ntasks-per-node=1
#SBATCH --output=%x-%j.log
set -euo pipefail
config=$1 run=$2
shift 2
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${hosts%%$'\n'*}
exec srun --kill-on-bad-exit=1 python3 -m torch.distributed.run \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${PROCESSES:-1}" --max-restarts 3 \
  --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:29500" \
  -m cortado train "$config" --out "$run" "$@"
