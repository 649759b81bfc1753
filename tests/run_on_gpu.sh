#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# All GPU tests, thousands of plans in turns, and the tests under compute-sanitizer's four tools, on
# this machine's GPU.
#
#   tests/run_on_gpu.sh [build folder] [--no-sanitizer] [--fuzz COUNT] [--plans COUNT]
#                       [--seed SEED]
#
# The build folder (default: build/default) is configured and built where it is not yet. Exit code:
# the number of runs that failed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/default
sanitizer=yes
fuzz=1000
plans=2000
seed=1
while [ $# -gt 0 ]; do
  case $1 in
    --no-sanitizer) sanitizer=no ;;
    --fuzz) shift; fuzz=$1 ;;
    --plans) shift; plans=$1 ;;
    --seed) shift; seed=$1 ;;
    -*) echo "run_on_gpu.sh: unknown option $1" >&2; exit 2 ;;
    *) build=$1 ;;
  esac
  shift
done

if ! command -v nvidia-smi > /dev/null || ! nvidia-smi -L > /dev/null 2>&1; then
  echo "run_on_gpu.sh: no NVIDIA GPU is at hand (nvidia-smi -L fails)" >&2
  exit 2
fi
if [ ! -d "$build/tests/kernels" ]; then
  cmake -S "$root" -B "$build" && cmake --build "$build" || exit 2
fi

failed=0
run() { # run NAME COMMAND...
  name=$1
  shift
  log=$build/gpu-test.log
  begin=$(date +%s)
  if "$@" > "$log" 2>&1; then
    verdict=ok
  else
    verdict="FAILED ($?)"
    failed=$((failed + 1))
  fi
  echo "$name: $verdict, $(($(date +%s) - begin)) s, $(grep -E ' ran[.]| PASSED | SKIPPED .*tests|ERROR SUMMARY' "$log" | tr '\n' ' ')"
  [ "$verdict" = ok ] || tail -40 "$log"
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
run "plans in turns" "$build/tests/fuzz/conv/conv_fuzz" --device cuda --interleave "$plans" \
  --threads 8 --seed "$seed"
for test in "$build"/tests/kernels/convoy_*_test "$build"/tests/kernels/convoy_*_tests; do
  [ -x "$test" ] || continue
  # Tests of another architecture's kernels skip.
  run "$(basename "$test")" env CONVOY_FUZZ_COUNT="$fuzz" CONVOY_FUZZ_SEED="$seed" "$test"
  [ $sanitizer = yes ] || continue
  for tool in memcheck racecheck synccheck initcheck; do
    # A sanitizer slows kernels tenfold and more: fewer random problems, no giant tensors. It may
    # run one kernel at a time: none that wait for each other.
    run "$(basename "$test") under $tool" env CONVOY_FUZZ_COUNT=20 CONVOY_FUZZ_SEED="$seed" \
      compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$test" --gtest_filter=-*PastTwoToThe31*:*ManyTiles*:Peers*
  done
done
echo "$failed failed"
exit "$failed"
