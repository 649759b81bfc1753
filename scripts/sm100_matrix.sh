#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long matrix of the Blackwell kernels on the virtual B200: every delivery policy x ten seeds x
# all configurations and shapes, then the mutation runs, of the plain, split, halo, normalising and
# 1-SM kernels.
# One line a run, in the order in which they end; exit status 1 where one failed.
#
#   scripts/sm100_matrix.sh [build folder, default build/default] [seeds, default 10]
#                           [jobs, default all cores]
set -euo pipefail
build=${1:-build/default}
seeds=${2:-10}
jobs=${3:-$(nproc)}
vgpu=$(find "$build" -path '*bin/vgpu' -type f | head -1)
tests=$build/tests/kernels
options='--gpu b200 --sms 8 --check all,reads,strict'

run() {  # delivery, seed
  local out status=0
  # shellcheck disable=SC2086
  out=$(CONVOY_TEST_SEED=$2 "$vgpu" run $options --delivery "$1" --seed "$2" \
    -- "$tests/convoy_kernel_tests" --gtest_brief=1 \
    --gtest_filter='*Sm100*' 2>&1) || status=$?
  [ "$status" -eq 0 ] || printf '%s\n' "$out"
  printf '%s seed %s, %s s: %s\n' "$1" "$2" "$SECONDS" "$(tail -1 <<< "$out")"
  return $((status != 0))
}
export -f run
export vgpu tests options

failed=0
# The longest first.
for delivery in random late sweep early; do
  seq -f "$delivery %g" 1 "$seeds"
done | xargs -P "$jobs" -L 1 bash -c 'run "$@"' _ || failed=1
subjects=(convoy_sm100_mutation_subject{,_split,_halo,_normalised,_1sm})
cmake --build "$build" --target "${subjects[@]}"
for subject in "${subjects[@]}"; do
  # shellcheck disable=SC2086
  "$vgpu" mutate $options -- "$tests/$subject" || failed=1
done
exit $failed
