#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long matrix of the Blackwell kernels on the virtual B200: every delivery policy x ten seeds x
# all configurations and shapes, then the mutation runs, of the plain and of the split kernel.
#
#   scripts/sm100_matrix.sh [build folder, default build/default] [seeds, default 10]
set -euo pipefail
build=${1:-build/default}
seeds=${2:-10}
vgpu=$(find "$build" -path '*bin/vgpu' -type f | head -1)
tests=$build/tests/kernels
for delivery in late early sweep random; do
  for seed in $(seq 1 "$seeds"); do
    printf '%s seed %s: ' "$delivery" "$seed"
    CONVOY_TEST_SEED=$seed "$vgpu" run --gpu b200 --sms 8 --delivery "$delivery" --seed "$seed" \
      --check race,oob,proxy,tcgen05,init,mbarrier,leak,strict \
      -- "$tests/convoy_sm100_test" --gtest_brief=1 | tail -1
  done
done
for subject in convoy_sm100_mutation_subject convoy_sm100_mutation_subject_split; do
  "$vgpu" mutate --gpu b200 --sms 8 \
    --check race,oob,proxy,tcgen05,init,mbarrier,leak,strict -- "$tests/$subject"
done
