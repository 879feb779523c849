#!/bin/sh
# Profiles three networks on one rank, then trains them with DDP on two, in interleaved rounds.
#   studies/pytorch/run.sh OUT [ROUNDS]      PYTHON: an interpreter with torch, and words before it: chrt -r 1 python3
set -eu
here=$(cd "$(dirname "$0")" && pwd); out=$1; rounds=${2:-5}; python=${PYTHON:-python3}
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29511
mkdir -p "$out"
two() {  # as torchrun --nproc-per-node 2
  RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 $python "$@" & RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 $python "$@"; wait
}
[ -f "$out/gloo.json" ] || ROUNDS=5 two "$here/costs.py" "$out/gloo.json"
for round in $(seq "$rounds"); do
  for model in cnn transformer residual; do
    $python "$here/train.py" "$model" --profile "$out/$model-$round.json.gz" --times "$out/times.jsonl"
    two "$here/train.py" "$model" --profile "$out/$model-ddp-$round.json.gz" --times "$out/times.jsonl"
    two "$here/train.py" "$model" --bucket-cap 1 --times "$out/times.jsonl"
  done
done
