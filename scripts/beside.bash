# SPDX-License-Identifier: Apache-2.0
# For scripts that do two things at once; to be sourced.
#
#   beside NAME COMMAND...   runs it in the background, its output in build/NAME.log
#   join NAME                waits for it, prints the output, returns its exit status
#
# What still runs when the script ends is ended with it.
declare -A beside_jobs

beside() {
  local name=$1
  shift
  mkdir -p build
  "$@" > "build/$name.log" 2>&1 &
  beside_jobs[$name]=$!
}

join() {
  local status=0
  wait "${beside_jobs[$1]}" || status=$?
  unset "beside_jobs[$1]"
  cat "build/$1.log"
  return $status
}

trap '[ ${#beside_jobs[@]} -eq 0 ] || kill "${beside_jobs[@]}" 2> /dev/null || true' EXIT
