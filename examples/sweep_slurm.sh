#!/bin/bash
# A sweep on a SLURM cluster: every task of the array takes its part of the runs, into one shared folder.
#
#   sbatch --array=1-8 examples/sweep_slurm.sh experiments/blurry-window/mqar.json paper /shared/mqar
#
# A task that is killed is submitted again with the same line: finished runs stay, others continue. When all have
# ended, the same command without --shard prints the table (and does what is left over, if anything is).
#SBATCH --job-name=cortado-sweep
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
set -eu
file=$1 scale=$2 out=$3
exec "${CORTADO:-cortado}" sweep "$file" --scale "$scale" --out "$out" --quiet \
  --shard "${SLURM_ARRAY_TASK_ID:?run by sbatch --array=1-N}/${SLURM_ARRAY_TASK_COUNT:-$SLURM_ARRAY_TASK_MAX}" \
  --jobs "${SLURM_CPUS_PER_TASK:-1}"
