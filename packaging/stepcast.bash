# Completion of stepcast and stepcast-runner. Commands, options and values are what 'help' lists, so that this file knows
# none of them.

_stepcast() {
  local program=$1 word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} help words home
  COMPREPLY=()
  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]}
  [[ $word == = ]] && word=
  if ((COMP_CWORD == 1)) || [[ $command == help && COMP_CWORD -eq 2 ]]; then
    words=$("$program" help 2>/dev/null | awk '/^  [a-z]/ {print $1}')
    mapfile -t COMPREPLY < <(compgen -W "$words help --help --version" -- "$word")
    return
  fi
  help=$("$program" help "$command" 2>/dev/null) || return
  if [[ $word == -* ]]; then
    words=$(awk 'match($0, /^  (-[a-z] \[ )?--[a-z-]+/) {sub(/.*--/, "--", $0); sub(/[^a-z-].*/, "", $0); print}' <<<"$help")
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    return
  fi
  case $before in
    --model | --cluster)
      home=${STEPCAST_HOME:-$(dirname -- "$(readlink -f -- "$(type -P -- "$program")")")/../share/stepcast}
      words=$(cd "$home/$([[ $before == --model ]] && echo models || echo topologies)" 2>/dev/null && printf '%s\n' *.yaml)
      mapfile -t COMPREPLY < <(compgen -W "${words//.yaml/}" -- "$word")
      mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
      ;;
    --*)
      # The names that the option's description explains, a line each: '  name: what it is'.
      words=$(awk -v option="$before" '/^  -/ {ours = index($0, "  " option " ") == 1 || index($0, "[ " option " ]")}
        ours && match($0, /[ ][a-z0-9_-]+:/) {print substr($0, RSTART + 1, RLENGTH - 2)}' <<<"$help")
      [[ $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
      ((${#COMPREPLY[@]})) || mapfile -t COMPREPLY < <(compgen -f -- "$word")
      ;;
    *)
      if [[ $command == plot && COMP_CWORD -eq 2 ]]; then
        words=$(awk 'match($0, /[ ][a-z0-9_-]+:/) {print substr($0, RSTART + 1, RLENGTH - 2)}' <<<"$help")
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
      fi
      ((${#COMPREPLY[@]})) || mapfile -t COMPREPLY < <(compgen -f -- "$word")
      ;;
  esac
}
complete -o filenames -F _stepcast stepcast stepcast-runner
