#!/usr/bin/env bash
# train.sh: what this experiment runs. One copy of it is started for every rank, in the experiment's folder inside the
# job package, which is read-only. Exit code 0 means done; anything else is an error, except 85 (see below).
#
# What the platform sets, among others (the whole list is in attempts/<n>/env.json of the run):
#   RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK    who this copy is
#   MASTER_ADDR MASTER_PORT                                  where rank 0 can be met
#   TUNEPLANE_RUN_ID TUNEPLANE_ATTEMPT                       the run, and its how many-th attempt this is
#   TUNEPLANE_OUT_DIR          results of this attempt: the place to write to
#   TUNEPLANE_CHECKPOINT_DIR   shared by all attempts: what the next one resumes from
#   TUNEPLANE_WORK_DIR         the package; .tuneplane/launch.json in it has the config and where the inputs lie
set -euo pipefail

checkpoint=$TUNEPLANE_CHECKPOINT_DIR/step.txt
step=0
if [ -e "$checkpoint" ]; then step=$(cat "$checkpoint"); fi

# A warning (the time limit or a preemption is near) comes as SIGUSR2 or SIGTERM: save, then exit with 85. The job is then
# requeued where the policy allows it, and the next attempt finds the checkpoint.
warned=
trap 'warned=1' USR2 TERM

echo "rank $RANK of $WORLD_SIZE on $(hostname), attempt $TUNEPLANE_ATTEMPT, from step $step"
while [ "$step" -lt "${STEPS:-10}" ]; do
  step=$((step + 1))
  sleep 0.1                                   # the work of one step stands here
  if [ "$RANK" = 0 ]; then
    printf '{"step": %d, "total_steps": %d}\n' "$step" "${STEPS:-10}" >>"$TUNEPLANE_OUT_DIR/metrics.jsonl"
    # Whole or not at all: write beside it, then rename.
    echo "$step" >"$checkpoint.new" && mv "$checkpoint.new" "$checkpoint"
  fi
  if [ -n "$warned" ]; then echo "warned at step $step: saved"; exit 85; fi
done

if [ "$RANK" = 0 ]; then
  printf '{"steps": %d}\n' "$step" >"$TUNEPLANE_OUT_DIR/result.json"
fi
echo "rank $RANK done"
