#!/bin/sh
# Measures the three networks as TorchScript, trains them with DDP on two ranks and compares, in interleaved rounds.
#   studies/pytorch/script.sh OUT [ROUNDS]      PYTHON: as for run.sh; STEPCAST: the command, and words before it
set -eu
here=$(cd "$(dirname "$0")" && pwd); out=$1; rounds=${2:-5}; python=${PYTHON:-python3}; stepcast=${STEPCAST:-stepcast}
mkdir -p "$out"
for model in cnn transformer residual; do $python "$here/train.py" "$model" --script "$out/$model.pt"; done
for round in $(seq "$rounds"); do
  calibration=$out/$round.calibration.json
  $stepcast calibrate --nproc 2 -o "$calibration"
  for model in cnn:32x3x32x32 transformer:16x64:vocabulary=1000 residual:16x3x32x32; do
    net=$out/${model%%:*}; input=${model#*:}
    $stepcast measure --model "$net.pt" --input "$input" -o "$net-$round.trace.json"
    $stepcast predict --strategy ddp --trace "$net-$round.trace.json" --calibration "$calibration" --cluster laptop \
      --world-size 2 -o "$net-$round.json"
    $stepcast run --strategy ddp --model "$net.pt" --batch "${input%%x*}" --nproc 2 -o "$net-$round.run.json"
    $stepcast compare "$net-$round.json" "$net-$round.run.json" -o "$net-$round.comparison.json"
  done
done
