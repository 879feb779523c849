# Limits on lines, files, functions and structs, for sizes.sh.
BEGIN {
  count = split(tables, list, "\n")
  for (i = 1; i <= count; ++i) exempt[list[i]] = 1
}

function report(line, rule) { print FILENAME ":" line ": " rule }

# The line without comments, characters and texts. A raw text may go on in the next lines: `raw` is its end.
function code_of(text,    found, open) {
  if (raw != "") {
    if ((found = index(text, raw)) == 0) return ""
    text = substr(text, found + length(raw))
    raw = ""
  }
  gsub(/'(\\.[0-7]*|[^'\\])'/, "0", text)
  while (match(text, /R"[^(" ]*\(|"|\/\//)) {
    open = substr(text, RSTART, RLENGTH)
    if (open == "//") return substr(text, 1, RSTART - 1)
    if (open == "\"") {
      if (!match(text, /"([^"\\]|\\.)*"/)) return substr(text, 1, RSTART - 1)
      text = substr(text, 1, RSTART - 1) "0" substr(text, RSTART + RLENGTH)
      continue
    }
    raw = ")" substr(open, 3, length(open) - 3) "\""
    found = index(substr(text, RSTART), raw)
    if (found == 0) return substr(text, 1, RSTART - 1)
    text = substr(text, 1, RSTART - 1) "0" substr(text, RSTART + found - 1 + length(raw))
    raw = ""
  }
  return text
}

# What a brace opens after `text`: namespace, type, function or something else.
function kind_of(text) {
  if (text ~ /(^|[ \t])(namespace|extern)[ \t]*[A-Za-z0-9_:]*[ \t]*$/) return "namespace"
  if (text ~ /(^|[ \t>])(struct|class|union)[ \t]+[^()=;]*$/) return "type"
  if (text ~ /(^|[ \t])enum[ \t]/) return "other"
  sub(/operator *[=!<>]+/, "operator", text)
  if (text !~ /\(/ || text ~ /^[^(]*=/) return "other"
  return "function"
}

# Starts the account of a struct, by its place, with its bases. Classes hide their members and may have any number.
function begin_struct(text,    parts, count, base) {
  key[depth] = ""
  if (text !~ /(^|[ \t>])struct[ \t]/) return
  base = text
  if (!sub(/^[^:]*(::[^:]*)*:[^:]/, "", base)) base = ""
  sub(/[ \t]*(final)?[ \t]*(:[^:].*)?$/, "", text)
  count = split(text, parts, /[ \t]+/)
  key[depth] = FILENAME ":" FNR
  members[key[depth]] = 0
  bases[key[depth]] = base
  name_at[key[depth]] = parts[count]
  if (kinds[depth - 1] == "namespace") place_of[parts[count]] = key[depth]
}

function members_with_bases(place,    parts, count, i, sum) {
  sum = members[place]
  count = split(bases[place], parts, /[ \t,]+/)
  for (i = 1; i <= count; ++i) if (parts[i] in place_of) sum += members_with_bases(place_of[parts[i]])
  return sum
}

# Data members that a statement in a type declares.
function members_of(text,    count) {
  gsub(/(public|private|protected)[ \t]*:/, "", text)
  gsub(/\[\[[^]]*\]\]/, "", text)
  while (gsub(/<[^<>]*>/, "", text)) continue
  while (gsub(/\([^()]*\)/, "()", text) && text ~ /\([^()]+\)/) continue
  if (text ~ /^[ \t]*(using|friend|static|typedef|template|struct|class|enum|constexpr|explicit|virtual)[ \t]/) return 0
  sub(/^[ \t]+/, "", text)
  if (text == "" || text ~ /^[^=]*\(/ || text ~ /operator/) return 0
  gsub(/\([^()]*\)/, "", text)
  return gsub(/,/, ",", text) + 1
}

function open_brace() {
  kinds[++depth] = "other"
  if (depth == 1 || kinds[depth - 1] == "namespace" || kinds[depth - 1] == "type") kinds[depth] = kind_of(statement)
  opened[depth] = FNR
  if (kinds[depth] == "type") begin_struct(statement)
  before[depth] = statement
  statement = ""
}

function close_brace() {
  if (depth == 0) return
  if (kinds[depth] == "function" && FNR - opened[depth] > max_function)
    report(opened[depth], "function of " FNR - opened[depth] " lines, at most " max_function " are allowed")
  statement = kinds[depth] == "other" ? before[depth] " 0" : ""
  --depth
}

function end_statement() {
  if (depth > 0 && kinds[depth] == "type" && key[depth] != "") members[key[depth]] += members_of(statement)
  statement = ""
}

function end_file() {
  if (product && lines > max_file) print file ": " lines " lines, at most " max_file " are allowed"
}

FNR == 1 {
  end_file()
  file = FILENAME
  source = FILENAME ~ /\.[ch]pp$/
  product = source && FILENAME !~ /^tests\//
  depth = 0
  raw = statement = ""
}

{
  lines = FNR
  width = $0
  gsub(/[\200-\277]/, "", width)  # a character counts once, of however many bytes
  if (length(width) > max_columns)
    report(FNR, length(width) " columns, at most " max_columns " are allowed")
}

product && !/^[ \t]*#/ {
  rest = code_of($0)
  while (match(rest, /[{};]/)) {
    statement = statement " " substr(rest, 1, RSTART - 1)
    mark = substr(rest, RSTART, 1)
    rest = substr(rest, RSTART + 1)
    if (mark == "{") open_brace()
    else if (mark == "}") close_brace()
    else end_statement()
  }
  statement = statement " " rest
}

END {
  end_file()
  for (place in members)
    if (members_with_bases(place) > max_members && !(name_at[place] in exempt))
      print place ": '" name_at[place] "' has " members_with_bases(place) " data members, at most " max_members " are allowed"
}
