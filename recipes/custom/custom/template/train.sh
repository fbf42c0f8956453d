#!/usr/bin/env bash
# train.sh: all that this experiment runs. It is started once on every node, in the experiment's folder inside the job
# package, which is read-only. Exit code 0 means done, 85 means "saved, start me again", anything else is an error.
#
# What the platform sets, among others (attempts/<n>/env.json of the run has the whole list):
#   RANK WORLD_SIZE            which copy of this script this is, and of how many: one a node
#   MASTER_ADDR MASTER_PORT    where rank 0 can be met
#   CUDA_VISIBLE_DEVICES       the GPUs of this node that belong to the job, if it asked for GPUs
#   TUNEPLANE_RUN_ID TUNEPLANE_ATTEMPT
#   TUNEPLANE_OUT_DIR          results of this attempt: the place to write to
#   TUNEPLANE_CHECKPOINT_DIR   shared by all attempts: what the next one goes on from
#   TUNEPLANE_WORK_DIR         the package; .tuneplane/launch.json in it has the config and says where the inputs lie
#
# Several processes a node are yours to start, for example with PyTorch in the image:
#   exec torchrun --nnodes "$WORLD_SIZE" --node-rank "$RANK" --nproc-per-node 8 \
#     --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" my_program.py
set -euo pipefail

steps=10
checkpoint=$TUNEPLANE_CHECKPOINT_DIR/step.txt
step=0
if [ -e "$checkpoint" ]; then step=$(cat "$checkpoint"); fi

# SIGUSR2 or SIGTERM warns that the time limit or a preemption is near. Save, then exit with 85: the job is queued again
# where its policy allows that, and the next attempt finds the checkpoint.
warned=
trap 'warned=1' USR2 TERM

echo "node $RANK of $WORLD_SIZE ($(hostname)), attempt $TUNEPLANE_ATTEMPT, from step $step"
while [ "$step" -lt "$steps" ]; do
  step=$((step + 1))
  sleep 0.1 # the work of one step stands here
  if [ "$RANK" = 0 ]; then
    printf '{"step": %d, "total_steps": %d}\n' "$step" "$steps" >>"$TUNEPLANE_OUT_DIR/metrics.jsonl"
    # Whole or not at all: written beside it, then renamed.
    echo "$step" >"$checkpoint.new" && mv "$checkpoint.new" "$checkpoint"
  fi
  if [ -n "$warned" ]; then
    echo "warned at step $step: saved"
    exit 85
  fi
done

if [ "$RANK" = 0 ]; then
  printf '{"steps": %d}\n' "$step" >"$TUNEPLANE_OUT_DIR/result.json"
fi
echo "node $RANK done"
