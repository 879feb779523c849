#!/bin/sh
# Profiles three networks on one rank, then trains them with DDP on two, in interleaved rounds.
#   studies/pytorch/run.sh OUT [ROUNDS]      PYTHON: an interpreter with torch
set -eu
here=$(cd "$(dirname "$0")" && pwd); out=$1; rounds=${2:-5}; python=${PYTHON:-python3}
mkdir -p "$out"
for round in $(seq "$rounds"); do
  ROUNDS=3 "$python" -m torch.distributed.run --nproc-per-node 2 "$here/costs.py" "$out/gloo-$round.json"
  for model in cnn transformer residual; do
    "$python" "$here/train.py" "$model" --profile "$out/$model-$round.json.gz" --times "$out/times.jsonl"
    "$python" -m torch.distributed.run --nproc-per-node 2 "$here/train.py" "$model" --times "$out/times.jsonl"
  done
done
