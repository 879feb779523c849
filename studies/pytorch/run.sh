#!/bin/sh
# Profiles three networks on one rank, forecasts DDP on two ranks from each profile and measures it, in interleaved rounds. Profiles
# of two ranks forecast other buckets. OUT keeps the profiles, forecasts and steps of every round.
#   studies/pytorch/run.sh OUT [ROUNDS]      PYTHON: an interpreter with torch, and words before it: chrt -r 1 python3; STEPCAST: the command
set -eu
here=$(cd "$(dirname "$0")" && pwd); out=$1; rounds=${2:-5}; python=${PYTHON:-python3}; stepcast=${STEPCAST:-stepcast}
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29511
mkdir -p "$out"
two() {  # as torchrun --nproc-per-node 2; PyTorch 2.6 sometimes stands still in destroy_process_group
  RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 timeout 300 $python "$@" & RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 timeout 300 $python "$@"; wait
}
forecast() {  # NAME MIB PROFILE...: of the step with buckets of so many MiB, into NAME-MIB.json
  name=$1; mib=$2; shift 2
  $stepcast import "$@" --force -o "$out/$name.trace.json"
  $stepcast predict --trace "$out/$name.trace.json" --calibration "$out/gloo.calibration.json" --strategy ddp --world-size 2 \
    --cluster laptop --bucket-cap "${mib}MiB" --force -o "$out/$name-$mib.json"
}
[ -f "$out/gloo.json" ] || ROUNDS=9 two "$here/costs.py" "$out/gloo.json"
$stepcast import "$out/gloo.json" --force -o "$out/gloo.calibration.json"
for round in $(seq "$rounds"); do
  for model in cnn transformer residual; do
    one=$model-one-$round; both=$model-two-$round
    $python "$here/train.py" "$model" --profile "$out/$one.json.gz" --times "$out/times.jsonl"
    for mib in 25 1; do forecast "$one" "$mib" "$out/$one.json.gz"; done
    two "$here/train.py" "$model" --profile "$out/$both.json.gz" --forecast "$out/$one-25.json" --times "$out/times.jsonl"
    forecast "$both" 1 "$out/$both".rank?.json.gz
    two "$here/train.py" "$model" --bucket-cap 1 --forecast "$out/$one-1.json" "$out/$both-1.json" --times "$out/times.jsonl"
  done
done
$python - "$out/times.jsonl" <<'END'
import collections, json, re, statistics, sys
errors = collections.defaultdict(list)
for line in open(sys.argv[1]):
    for forecast, error in json.loads(line).get("errors", {}).items():
        errors[re.sub(r"-[0-9]+-", " rank(s), MiB of a bucket: ", forecast)].append(100.0 * error)
for what, each in sorted(errors.items()):
    print(f"{what}: median {statistics.median(each):+.1f} %, {min(each):+.1f} to {max(each):+.1f} % in {len(each)} rounds")
END
