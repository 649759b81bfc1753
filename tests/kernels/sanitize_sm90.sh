#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# compute-sanitizer's four tools over every Hopper kernel of this build: the small problems of
# convoy_kernel_tests (Sm90Small), one process a kernel and tool, several at a time.
#
#   tests/kernels/sanitize_sm90.sh [--jobs N] [--tools "memcheck racecheck ..."] [--kernels REGEX]
#                                  [--limit SECONDS] [build folder]
#
# Prints one line a tool and one for each run that did not pass. Exit code: 0 if all passed.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/default
jobs=$(nproc)
tools="memcheck racecheck synccheck initcheck"
kernels=.
limit=300
while [ $# -gt 0 ]; do
  case $1 in
    --jobs) shift; jobs=$1 ;;
    --tools) shift; tools=$1 ;;
    --kernels) shift; kernels=$1 ;;
    --limit) shift; limit=$1 ;;
    -*) echo "sanitize_sm90.sh: unknown option $1" >&2; exit 2 ;;
    *) build=$1 ;;
  esac
  shift
done
test=$build/tests/kernels/convoy_kernel_tests
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# A kernel that takes 3x3 or 1x1 takes one of these (320: two filter tiles, for clusters along N).
for problem in n1h8w8c8k320r3s3ph1pw1 n1h8w8c8k320 "n1h8w8c8k320 --output-dtype fp32"; do
  # shellcheck disable=SC2086
  "$build/bin/convoy" explain $problem --device cuda
done 2> /dev/null | grep -E '^ *[*+] ' | grep -oE 'sm90_[a-z0-9_]+' | sort -u | grep -E "$kernels" > "$logs/kernels"
if [ ! -s "$logs/kernels" ]; then
  echo "sanitize_sm90.sh: no Hopper kernel is at hand" >&2
  exit 2
fi

one() { # one TOOL KERNEL
  log=$logs/$1.$2
  CONVOY_TEST_KERNEL=$2 timeout "$limit" compute-sanitizer --tool "$1" --error-exitcode 9 \
    "$test" --gtest_filter='Sm90Small.*' > "$log" 2>&1
  code=$?
  if [ $code = 0 ] && grep -q 'SUMMARY: 0 ' "$log"; then
    echo "$1 passed $2"
  else
    echo "$1 FAILED $2: exit code $code, $(grep -E 'SUMMARY' "$log" | tail -1)"
    grep -E '=========|Failure|what' "$log" | head -12 >&2
  fi
}
export -f one
export logs test limit
begin=$SECONDS
for tool in $tools; do
  sed "s/^/$tool /" "$logs/kernels"
done | xargs -P "$jobs" -L 1 bash -c 'one "$@"' _ > "$logs/results"
for tool in $tools; do
  echo "$tool: $(grep -c "^$tool passed" "$logs/results") of $(wc -l < "$logs/kernels") kernels clean"
done
echo "$((SECONDS - begin)) s"
! grep FAILED "$logs/results"
