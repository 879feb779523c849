#!/usr/bin/env bash
# What is installed works without the source tree: tests/packaging/installed.sh SOURCE BUILD
# Installs into a temporary folder, and from a Debian package where dpkg-dev is here, hides SOURCE and BUILD where this
# process may (root), and asks the programs.
set -euo pipefail

readonly source=$1 build=$2
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# check PREFIX: as on a machine that has never seen the sources
check() {
  local prefix=$1
  for file in bin/stepcast bin/stepcast-runner lib/stepcast/libstepcast-torch.so share/stepcast/models/simple-cnn.yaml \
    share/stepcast/topologies/star.yaml share/stepcast/topologies/devices/devices.yaml share/stepcast/studies/scaling.yaml \
    share/stepcast/studies/published/netflix-mlp-p100.yaml \
    share/stepcast/calibration/data/two-cores.calibration.json share/man/man1/stepcast.1.gz \
    share/man/man1/stepcast-predict.1.gz share/man/man1/stepcast-measure.1.gz \
    share/bash-completion/completions/stepcast share/doc/stepcast/README.md; do
    [[ -e $prefix/$file ]] || fail "$prefix has no $file"
  done
  # A name that only the installed folder has.
  cp "$prefix"/share/stepcast/models/{netflix-mlp,only-here}.yaml
  cat >"$stage/ask.sh" <<'END'
set -euo pipefail
prefix=$1 source=$2 build=$3
if [[ $4 == hidden ]]; then
  mount -t tmpfs none "$build"
  mount -t tmpfs none "$source"
  [[ -z $(ls "$source") ]]
fi
cd "$(mktemp -d)"
export PATH=$prefix/bin:$PATH
unset STEPCAST_HOME STEPCAST_RUNNER
stepcast predict --model synthetic:layers=4 --strategy ddp --cluster star:hosts=4 --world-size 4 -o p.json >/dev/null
stepcast predict --model only-here --device h100-sxm --cluster h100x8-hgx --batch 8 --strategy ddp --world-size 2 >/dev/null
stepcast show h100x8-hgx | grep -q GB/s
stepcast validate --case netflix-mlp-cpu-gloo >/dev/null
stepcast help measure | grep -q -- --batch
stepcast measure --model simple-cnn --batch 2 --steps 2 --warmup 1 -o t.json >/dev/null
[[ -s t.json ]]
# Completion: commands, options and names are those of the programs.
source "$prefix/share/bash-completion/completions/stepcast"
complete_words() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _stepcast stepcast; echo "${COMPREPLY[*]}"; }
[[ $(complete_words stepcast pred) == predict ]]
[[ $(complete_words stepcast predict --world) == --world-size ]]
[[ $(complete_words stepcast predict --model only) == only-here ]]
END
  if unshare --mount true 2>/dev/null; then
    unshare --mount bash "$stage/ask.sh" "$prefix" "$source" "$build" hidden || fail "without the sources: see above"
  else
    bash "$stage/ask.sh" "$prefix" "$source" "$build" visible || fail "see above"
  fi
  # Pages are whole: a name, a synopsis, and every option of 'help'.
  zcat "$prefix/share/man/man1/stepcast-predict.1.gz" >"$stage/page"
  for word in '.SH NAME' '.SH SYNOPSIS' 'world\\-size' 'trace'; do
    grep -q -- "$word" "$stage/page" || fail "the page of predict has no '$word'"
  done
}

DESTDIR=$stage/staged cmake --install "$build" --prefix /usr >/dev/null
check "$stage/staged/usr"

if command -v dpkg-shlibdeps >/dev/null; then
  cpack --config "$build/CPackConfig.cmake" -G DEB -B "$stage/package" >"$stage/cpack.log" 2>&1 || fail "$(cat "$stage/cpack.log")"
  deb=("$stage"/package/*.deb)
  depends=$(dpkg-deb -f "${deb[0]}" Depends)
  for library in libc6 libsimgrid libtorch libgloo; do
    [[ $depends == *$library* ]] || fail "the package depends on '$depends', and not on $library"
  done
  dpkg-deb -x "${deb[0]}" "$stage/unpacked"
  check "$stage/unpacked/usr"
else
  echo "no dpkg-shlibdeps (package dpkg-dev): the Debian package was not built"
fi
