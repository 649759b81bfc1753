#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build libconvoy_sm90_bench.so (every sm90 instance behind a C interface) into $1 without CMake.
# $2: only instances of this type combination (bf16, fp16, bf16>fp32 ...), empty for all.
# TABLE: another instances.txt; EXTRA: more compiler flags; JOBS: compilers at once.
set -e
root=$(cd "$(dirname "$0")/../.." && pwd)
out=$1; only=$2
mkdir -p "$out/instances"
flags="-std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -cudart static -Xcompiler -fPIC -I$root/src -I$root/include $EXTRA"
declarations=""; entries=""; jobs=""
rm -f "$out"/instances/*.cu
while read -r types m n consumers cluster mode stages halo_stages pixels staging; do
  case $types in '#'*|'') continue;; esac
  halo=false; schedule=cooperative; swapped=false
  case $mode in *halo*) halo=true;; esac
  case $cluster in *x*) ;; *) cluster=${cluster}x1;; esac
  case $mode in *swapped*) swapped=true;; esac
  case $mode in *splitk*) schedule=split_k;; *pingpong*) schedule=pingpong;; esac
  for type in $(echo "$types" | tr ',' ' '); do
    [ -n "$only" ] && [ "$only" != "$type" ] && continue
    case $type in
      bf16) cpp="__nv_bfloat16, __nv_bfloat16";; fp16) cpp="__half, __half";;
      'bf16>fp32') cpp="__nv_bfloat16, float";; 'fp16>fp32') cpp="__half, float";;
    esac
    name="$(echo "$type" | tr '>' '_')_${m}x${n}_w${consumers}_c${cluster}_${mode}_s${stages}_h${pixels}"
    cat > "$out/instances/$name.cu.new" <<EOF
#include "kernels/sm90/instance.cuh"
namespace convoy::sm90 {
FpropInstance instance_$name() {
  return describe_instance<FpropConfig<$cpp, $m, $n, $consumers, ${cluster%x*}, $halo, Schedule::$schedule, $stages, $halo_stages, $pixels, $staging, $swapped, ${cluster#*x}>>();
}
}
EOF
    mv "$out/instances/$name.cu.new" "$out/instances/$name.cu"
    declarations="$declarations FpropInstance instance_$name();"
    entries="$entries instance_$name(),"
  done
done < "${TABLE:-$root/src/kernels/sm90/instances.txt}"
cat > "$out/instances/registry.cpp" <<EOF
#include "kernels/sm90/instances.hpp"
namespace convoy::sm90 {
$declarations
const std::vector<FpropInstance>& fprop_instances() {
  static const std::vector<FpropInstance> instances = {$entries};
  return instances;
}
}
EOF
rm -f "$out"/*.o
{ ls "$out"/instances/*.cu "$out/instances/registry.cpp"; echo "$root/src/kernels/sm90/host.cu"; echo "$root/src/kernels/sm90/model.cpp"; echo "$root/src/kernels/common/tensor_map.cpp"; echo "$root/bench/sm90/fprop_capi.cu"; } |
  xargs -P "${JOBS:-2}" -I{} sh -c "nvcc $flags -Xptxas -v -c {} -o $out/\$(basename {}).o 2> $out/\$(basename {}).log || cat $out/\$(basename {}).log >&2"
nvcc -shared -cudart static -o "$out/libconvoy_sm90_bench.so" "$out"/*.o
