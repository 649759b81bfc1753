#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a layer's kernel keeps busy, by Nsight Compute's hardware counters: one line a shape, each
# unit in per cent of what it could do while the kernel ran. Caches are cold, clocks as they are.
#
#   bench/sm90/counters.sh [--program build/default/bin/convoy] SHAPE[,bench options...]...
#   bench/sm90/counters.sh n64h7w7c2048k512r1s1 n1h1024w1024c128k128r3s3ph1pw1,--residual
set -euo pipefail
program=build/default/bin/convoy
if [ "${1:-}" = --program ]; then
  program=$2
  shift 2
fi
metrics=gpu__time_duration.sum
metrics+=,sm__inst_executed_pipe_tensor.sum
metrics+=,sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed
metrics+=,l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed
metrics+=,lts__t_sectors.avg.pct_of_peak_sustained_elapsed
metrics+=,dram__throughput.avg.pct_of_peak_sustained_elapsed
metrics+=,smsp__cycles_active.avg.pct_of_peak_sustained_elapsed
for argument in "$@"; do
  IFS=, read -r -a words <<< "$argument"
  echo "$argument"
  # The second launch: the first one packs the filter or warms up.
  ncu --target-processes all --clock-control none --kernel-name 'regex:sm90|stem|halo|patch|pointwise|grouped|depthwise' \
      --launch-skip 1 --launch-count 1 --metrics "$metrics" --print-units base \
      "$program" bench --device cuda --time 0.001 "${words[@]}" 2>&1 |
    grep -E '^ +[a-z0-9]+__|==ERROR==|\(.*\)x\(' | sed 's/^ */    /' || echo '    no kernel of that shape was seen'
done
