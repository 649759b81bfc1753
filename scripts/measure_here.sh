#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What the kernels of mma.sync do on this machine's GPU: an A100, an L40S, an RTX 30 to 50. Tests, the
# shape sets, the time of every kernel on layers that nobody tuned for, and cuDNN beside them where it
# is installed; one archive to send back.
#
#   scripts/measure_here.sh [--build FOLDER] [--out FOLDER] [--quick] [--seconds S] [--only STEP,...]
#
# The build folder (default: build/here) is configured and built for this GPU alone: minutes on many
# processors. Then some forty minutes; --quick: five. --seconds: that of most steps, 600 without --quick.
# --only: of the steps build, tests, fuzz, bench, kernels, cudnn these; without `build` the folder is taken
# as it is. Each step has a time-out, and the next follows whatever became of it. Exit status: 0 where every
# step passed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/here
out=$root/measured-here
seconds=600
only=build,tests,fuzz,bench,kernels,cudnn
while [ $# -gt 0 ]; do
  case $1 in
    --build) shift; build=$(realpath -m "${1:?--build needs a folder}") ;;
    --out) shift; out=${1:?--out needs a folder} ;;
    --quick) seconds=60 ;;
    --seconds) shift; seconds=${1:?--seconds needs a number} ;;
    --only) shift; only=${1:?--only needs steps} ;;
    *) sed -n '3,14p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
  esac
  shift
done
for name in ${only//,/ }; do
  case $name in
    build | tests | fuzz | bench | kernels | cudnn) ;;
    *) echo "measure_here.sh: --only $name; legal: build, tests, fuzz, bench, kernels, cudnn" >&2; exit 2 ;;
  esac
done
case $seconds in
  '' | *[!0-9]* | 0) echo "measure_here.sh: --seconds $seconds; legal: a whole number from 1 on" >&2; exit 2 ;;
esac
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1 | tr -d .)
if [ -z "$capability" ]; then
  echo "measure_here.sh: no NVIDIA GPU is at hand (nvidia-smi --query-gpu=compute_cap fails)" >&2
  exit 2
fi
mkdir -p "$out" || exit 2
out=$(realpath "$out")

failed=0
step() { # step NAME COMMAND...: NAME is a step, or a step, '-' and what it is of.
  local name=$1 begin verdict=ok
  case ,$only, in *,"${name%%-*}",*) ;; *) return ;; esac
  shift
  begin=$(date +%s)
  "$@" > "$out/$name.txt" 2>&1 || { verdict="FAILED ($?)"; failed=$((failed + 1)); }
  printf '%s: %s, %s s\n' "$name" "$verdict" $(($(date +%s) - begin)) | tee -a "$out/summary.txt"
  [ "$verdict" = ok ] || tail -20 "$out/$name.txt"
}
build() {
  local hopper=OFF blackwell=OFF
  case $capability in 90) hopper=ON ;; 10*) blackwell=ON ;; esac
  cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCONVOY_SM90=$hopper \
    -DCONVOY_SM100=$blackwell "-DCONVOY_OTHER_GPUS=$capability" &&
    cmake --build "$build" && cmake --build "$build" --target convoy_measure_kernels
}

nvidia-smi --query-gpu=name,driver_version,power.limit,clocks.max.sm,memory.total --format=csv |
  tee "$out/summary.txt"
step build build
[ $failed = 0 ] || exit 1
step tests timeout 1800 "$build/tests/kernels/convoy_kernel_tests"
step fuzz timeout $((4 * seconds)) "$build/tests/fuzz/conv/conv_fuzz" --device cuda --all-kernels \
  --count $(((seconds + 1) / 2))
for set in "$root"/bench/shapes/*.txt; do
  step "bench-$(basename "$set" .txt)" timeout "$seconds" "$build/bin/convoy" bench "$set" --csv
done
"$root/bench/shapes/wild.py" --seeds 0:60 --layers 6 > "$out/wild.txt" || failed=$((failed + 1))
step kernels timeout $((2 * seconds)) "$build/bin/convoy_measure_kernels" --csv "$out/kernels.csv" --seconds "$seconds" \
  "$out/wild.txt" "$root"/bench/shapes/*.txt
if [ -x "$build/bin/convoy_vs_cudnn" ]; then
  step cudnn timeout $((2 * seconds)) "$build/bin/convoy_vs_cudnn" --csv "$out/cudnn.csv" --budget "$seconds" \
    "$root"/bench/shapes/*.txt
fi
tar -C "$(dirname "$out")" -czf "$out.tar.gz" "$(basename "$out")"
echo "Send $out.tar.gz"
exit $((failed > 0))
