#!/usr/bin/env bash
# Takes a random 30 to 60 % of every core away from what else runs, as the neighbours of a virtual machine do:
#   tests/disturb.sh SECONDS [COMMAND...]   for so long, or as long as the command runs
# On each core a loop of higher priority (nice -10; as root) is busy for 30 to 60 % of periods of 20 to 200 ms.
set -euo pipefail

(($# >= 1)) || {
  echo "usage: tests/disturb.sh SECONDS [COMMAND...]" >&2
  exit 2
}
readonly seconds=$1
shift

# disturb CORE SECONDS
disturb() {
  local stop=$((${EPOCHREALTIME/./} + $2 * 1000000)) now period busy
  taskset -cp "$1" "$BASHPID" >/dev/null
  renice -n -10 -p "$BASHPID" >/dev/null
  while now=${EPOCHREALTIME/./} && ((now < stop)); do
    period=$((20000 + RANDOM % 180000))
    busy=$((period * (30 + RANDOM % 31) / 100))
    while ((${EPOCHREALTIME/./} < now + busy)); do :; done
    sleep "$(printf '0.%06d' $((period - busy)))"
  done
}

loops=()
for core in $(taskset -cp $$ | sed 's/.*: //' | tr ',' '\n' | while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done); do
  disturb "$core" "$seconds" &
  loops+=($!)
done
trap 'kill "${loops[@]}" 2>/dev/null || true' EXIT
if (($#)); then
  "$@"
else
  wait
fi
