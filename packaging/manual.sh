#!/bin/sh
# Manual pages from what the programs say of themselves: packaging/manual.sh STEPCAST FOLDER
# writes FOLDER/stepcast.1.gz and FOLDER/stepcast-COMMAND.1.gz for every command of 'stepcast help'.
set -eu

stepcast=$1
folder=$2
version=$("$stepcast" --version | awk 'NR == 1 {print $2}')

# page NAME DESCRIPTION < help
page() {
  awk -v name="$1" -v about="$2" -v version="$version" '
    function text(line) {
      gsub(/\\/, "\\e", line)
      gsub(/-/, "\\-", line)
      if (line ~ /^[.\x27]/) line = "\\&" line
      return line
    }
    BEGIN {
      printf ".TH %s 1 \"\" \"stepcast %s\" \"stepcast\"\n", toupper(name), version
      printf ".SH NAME\n%s \\- %s\n", name, text(about)
    }
    /^Exit codes: / { print ".SH EXIT STATUS" }
    /^.stepcast.* help COMMAND/ { print ".SH NOTES" }
    !seen && !/^Usage: / { next }
    /^Usage: / { seen = 1; print ".SH SYNOPSIS\n.nf"; usage = 1; sub(/^Usage: /, "") }
    usage && /^ *$/ { usage = 0; print ".fi"; heading = ".SH DESCRIPTION"; next }
    usage { sub(/^ +/, ""); print text($0); next }
    /^[A-Z].*:$/ { sub(/:$/, ""); if (open) print ".fi"; open = 0; print ".SH " toupper(text($0)); heading = ""; next }
    /^  -/ {
      if (open) print ".fi"
      open = 1
      # The name ends where two blanks follow; its description may begin on the next line.
      at = match(substr($0, 3), /   *[^ ]/)
      print ".TP\n.B " text(at ? substr($0, 3, at - 1) : substr($0, 3)) "\n.nf"
      if (at) { rest = substr($0, at + 2); sub(/^ +/, "", rest); print text(rest) }
      next
    }
    open && /^ / { sub(/^ +/, ""); print text($0); next }
    /^  [a-z]/ { print ".TP\n.B " text($1); sub(/^  [^ ]+ +/, ""); print text($0); next }
    /^ *$/ { if (open) print ".fi"; open = 0; print ".PP"; next }
    { if (heading != "") print heading; heading = ""; print text($0) }
    END { if (open) print ".fi" }' | sed '/^\.PP$/{N;/\n\.SH/s/^\.PP\n//;}' | gzip -9n >"$folder/$1.1.gz.part"
  mv "$folder/$1.1.gz.part" "$folder/$1.1.gz"
}

mkdir -p "$folder"
"$stepcast" help | page stepcast "forecasts how long a distributed training step takes"
"$stepcast" help | awk '/^  [a-z]/ {print $1}' | while read -r command; do
  about=$("$stepcast" help | awk -v c="$command" '$1 == c {sub(/^ *[^ ]+ +/, ""); sub(/[.]$/, ""); print; exit}')
  "$stepcast" help "$command" | page "stepcast-$command" "$about"
done
