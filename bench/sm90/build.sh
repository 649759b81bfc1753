#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build libconvoy_sm90_bench.so (every sm90 instance behind a C interface) into $1 without CMake.
# $2: only instances of this type combination (bf16, fp16, bf16>fp32 ...), empty for all.
# TABLE: another instances.txt; EXTRA: more compiler flags; JOBS: compilers at once.
set -e
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$1; only=$2
mkdir -p "$out/instances"
echo '#define CONVOY_GIT_HASH "unknown"' > "$out/convoy_git_hash.hpp"
flags="-std=c++20 -O3 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -cudart static -Xcompiler -fPIC -I$root/src -I$root/include -I$out $EXTRA"
declarations=""; entries=""; jobs=""
rm -f "$out"/instances/*.cu
while read -r types m n consumers cluster_m cluster_n input schedule rows stages act_stages pixels staging epilogues; do
  case $types in '#'*|'') continue;; esac
  for type in $(echo "$types" | tr ',' ' '); do
    [ -n "$only" ] && [ "$only" != "$type" ] && continue
    in=${type%%>*}; res=${type##*>}
    name="$(echo "$type" | tr '>' '_')_${m}x${n}_w${consumers}_c${cluster_m}x${cluster_n}_${input}_${schedule}_${rows}_s${stages}_h${pixels}"
    cat > "$out/instances/$name.cu.new" <<EOF
#include "kernels/sm90/instance.cuh"
namespace convoy::sm90 {
Instance instance_$name() {
  return make_instance<Config{.in = DType::$in, .out = DType::$res, .block_m = $m, .block_n = $n,
                              .consumers = $consumers, .cluster_m = $cluster_m, .cluster_n = $cluster_n,
                              .filter_stages = $stages, .act_stages = $act_stages, .halo_pixels = $pixels,
                              .staging_pieces = $staging, .input = Input::$input,
                              .schedule = Schedule::$schedule, .mma_rows = MmaRows::$rows},
                       NoComputeOp, NoStoreOp, Entries::$epilogues>();
}
}
EOF
    mv "$out/instances/$name.cu.new" "$out/instances/$name.cu"
    declarations="$declarations Instance instance_$name();"
    entries="$entries instance_$name(),"
  done
done < "${TABLE:-$root/src/kernels/sm90/instances.txt}"
cat > "$out/instances/registry.cpp" <<EOF
#include "kernels/sm90/instances.hpp"
namespace convoy::sm90 {
$declarations
const std::vector<Instance>& instances() {
  static const std::vector<Instance> list = {$entries};
  return list;
}
}
EOF
rm -f "$out"/*.o
{
  ls "$out"/instances/*.cu "$out/instances/registry.cpp"
  for source in kernels/sm90/host.cpp kernels/sm90/loading.cpp kernels/sm90/refusal.cpp \
                kernels/sm90/model.cpp kernels/sm90/statistics.cu kernels/common/implicit_gemm.cpp \
                kernels/common/time_correction.cpp kernels/common/launch.cpp \
                kernels/common/tensor_map.cpp kernels/common/filter_packing.cu core/geometry.cpp core/names.cpp; do
    echo "$root/src/$source"
  done
  echo "$root/bench/sm90/fprop_capi.cu"
} |
  xargs -P "${JOBS:-2}" -I{} sh -c "nvcc $flags -Xptxas -v -c {} -o $out/\$(basename {}).o 2> $out/\$(basename {}).log || cat $out/\$(basename {}).log >&2"
nvcc -shared -cudart static -o "$out/libconvoy_sm90_bench.so" "$out"/*.o
