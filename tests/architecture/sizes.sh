#!/usr/bin/env bash
# sizes.sh [FOLDER...]: limits on size and form. Prints FILE:LINE and the rule of every violation in the folders; without
# folders, of all files. Exit status 1 if there are any. './dev lint' and the test architecture/sizes run it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly max_code_lines=57087     # of the product: no blanks, comments, includes; tests are not product
readonly max_file_lines=450       # of a product file
readonly max_function_lines=60    # from the opening to the closing brace; lambdas count as a part of their function
readonly max_columns=110          # of every C++ line, tests and comments included
readonly max_members=15           # data members of a struct of the product, with those of its bases

# Tables of data, which may have more members: each is one record whose fields a file or a data sheet lists.
readonly tables="$(awk '{ print $1 }' <<'END'
NcclParameters    model parameters of NCCL's kernels, one key of nccl.yaml each
KernelParameters  model parameters of a generation of GPUs, one key of kernels.yaml each
DeviceModel       data sheet and measured rates of a device, one key of devices.yaml each
TraceEntry        samples of a measured batch size, one key of a trace file each
END
)"

sources=$(git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp')
product=$(grep -v '^tests/' <<<"$sources")

form() {
  # shellcheck disable=SC2086
  LC_ALL=C awk -v max_file="$max_file_lines" -v max_function="$max_function_lines" -v max_columns="$max_columns" \
    -v max_members="$max_members" -v tables="$tables" -f tests/architecture/sizes.awk $sources
}

code_lines() {
  # shellcheck disable=SC2086
  cat $product | grep -vcE '^[[:space:]]*(//.*)?$|^[[:space:]]*#include'
}

violations=$(form | sort -t : -k 1,1 -k 2,2n)
if (($#)); then
  violations=$(grep -E "^($(IFS='|'; echo "$*"))/" <<<"$violations" || true)
elif lines=$(code_lines); ((lines > max_code_lines)); then
  violations+="${violations:+$'\n'}code lines of the product: $lines, at most $max_code_lines are allowed"
fi
[[ -z $violations ]] && exit 0
echo "$violations"
exit 1
