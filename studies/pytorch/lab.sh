#!/bin/sh
# Forecasts the profiles of measured/ on four hosts of the lab, then measures them with modules that sleep, in interleaved rounds.
# In each round the networks themselves train, too: profiled on two ranks of this machine, then on two hosts of the lab.
#   studies/pytorch/lab.sh OUT [ROUNDS] [PROFILES]      PYTHON: as for run.sh; STEPCAST: the command
# PROFILES: a folder with MODEL.json.gz, or MODEL.rank0.json.gz and MODEL.rank1.json.gz, in place of measured/
set -eu
here=$(cd "$(dirname "$0")" && pwd); out=$1; rounds=${2:-5}; python=${PYTHON:-python3}; stepcast=${STEPCAST:-stepcast}
profiles=${3:-$here/measured}
hosts=lab-star:hosts=4,rate
cases="1Gb/s-25 1Gb/s-1 500Mb/s-25"  # rate of a link and MiB of a bucket
mkdir -p "$out"
two() (  # as torchrun --nproc-per-node 2
  export MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 WORLD_SIZE=2
  RANK=1 $python "$@" & second=$!
  RANK=0 $python "$@"
  wait $second
)
two "$here/costs.py" "$out/gloo.json"
$stepcast import "$out/gloo.json" -o "$out/gloo.calibration.json"
for model in cnn transformer residual; do
  $stepcast import "$profiles/$model".*json.gz -o "$out/$model.trace.json"
  for case in $cases; do
    $stepcast predict --compute replayed --trace "$out/$model.trace.json" --calibration "$out/gloo.calibration.json" \
      --strategy ddp --world-size 4 --cluster "$hosts=${case%-*}" --bucket-cap "${case#*-}MiB" \
      -o "$out/$model-$(echo "$case" | tr / p).json"
  done
done
for round in $(seq "$rounds"); do
  for model in cnn transformer residual; do
    for case in $cases; do
      $stepcast lab run --cluster "$hosts=${case%-*}" -- $python "$here/sleep.py" "$out/$model.trace.json" \
        --bucket-cap "${case#*-}" --forecast "$out/$model-$(echo "$case" | tr / p).json" --times "$out/times-lab.jsonl"
    done
    two "$here/train.py" "$model" --profile "$out/$model-ddp-$round.json.gz"
    for rate in 1Gb/s 500Mb/s; do
      $stepcast lab run --cluster "lab-star:hosts=2,rate=$rate" -- $python "$here/train.py" "$model" \
        --times "$out/times-$(echo $rate | tr / p).jsonl"
    done
  done
done
