#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the libFuzzer targets of the readers and of the virtual GPU's PTX parser and runs each for
# a number of executions, or for a number of seconds where that comes first. A finding ends with its
# repro file in build/asan.
#
#   scripts/fuzz.sh [EXECUTIONS [SECONDS [TARGET...]]]
set -euo pipefail
cd "$(dirname "$0")/.."
executions=${1:-10000000}
seconds=${2:-0}
shift $(($# < 2 ? $# : 2))

cmake --preset asan > /dev/null
cmake --build --preset asan --parallel "$(nproc)" --target fuzzers
cd build/asan
tests/fuzz/make_seeds seeds

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  targets=(readers_npy readers_safetensors readers_png readers_shape vgpu_parser_fuzz)
  # Where libjpeg is.
  if [ -x tests/fuzz/readers_jpeg ]; then targets+=(readers_jpeg); fi
fi
ptx=../../vgpu/tests/ptx
fuzz() {
  local target=$1
  # Inputs stay short, for speed: a header is enough to go wrong in.
  local length=512 seeds=(seeds/"$target") log=corpus/$target.log
  case $target in
    readers_shape) length=256 ;;
    readers_jpeg) length=1024 ;;
    vgpu_parser_fuzz) length=384 seeds=("$ptx/seeds" -dict="$ptx/ptx.dict") ;;
  esac
  mkdir -p "corpus/$target"
  if ! "tests/fuzz/$target" -runs="$executions" -max_total_time="$seconds" -max_len=$length \
       -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$target-" -print_final_stats=1 \
       "corpus/$target" "${seeds[@]}" > "$log" 2>&1; then
    tail -n 40 "$log"
    echo "fuzz: $target found something; repeat: build/asan/tests/fuzz/$target build/asan/$target-*"
    return 1
  fi
  local runs
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "fuzz: $target: $runs executions, no finding"
}

# As many at a time as there are cores.
found=0 running=0
for target in "${targets[@]}"; do
  if [ $running -ge "$(nproc)" ]; then
    wait -n || found=1
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
while [ $running -gt 0 ]; do
  wait -n || found=1
  running=$((running - 1))
done
exit $found
