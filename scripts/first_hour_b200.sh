#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The first hour on a chip: everything that says whether the Blackwell kernels are right and fast on
# it, in the order in which a failure explains the next one, each step with a verdict, going on
# wherever it can. The end is one archive to send back.
#
#   scripts/first_hour_b200.sh [--build FOLDER] [--out FOLDER] [--virtual b200|b300|h200]
#                              [--quick] [--steps "driver probes ladder ..."]
#
# On a B200, B300 (or H100, H200: the Hopper half). --virtual runs what can run there on the virtual
# GPU of the build, to try the script itself. --quick: the ladder and a share of the tests. The build
# folder (default: build/default) is configured and built where it is not yet. Exit status: 0 where
# every step that ran passed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/default
out=$root/first-hour
virtual=
quick=
steps="driver probes ladder tests sanitizer fuzz tune cudnn model"
while [ $# -gt 0 ]; do
  case $1 in
    --build) shift; build=$(realpath "$1") ;;
    --out) shift; out=$1 ;;
    --virtual) shift; virtual=$1 ;;
    --quick) quick=yes ;;
    --steps) shift; steps=$1 ;;
    *) sed -n '3,17p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
  esac
  shift
done
mkdir -p "$out" || exit 2
out=$(realpath "$out")
summary=$out/summary.txt
: > "$summary"

if [ ! -x "$build/tests/kernels/convoy_kernel_tests" ]; then
  if ! { cmake -S "$root" -B "$build" -G Ninja && cmake --build "$build"; } > "$out/build.txt" 2>&1
  then
    tail -20 "$out/build.txt" >&2
    exit 2
  fi
fi
tests=$build/tests/kernels/convoy_kernel_tests
templates=$build/tests/kernels/convoy_template_tests
probe=$build/tests/kernels/convoy_sm100_probe
convoy=$build/bin/convoy
vgpu=$(find "$build" -path '*bin/vgpu' -type f | head -1)

launcher=()
if [ -n "$virtual" ]; then
  [ -n "$vgpu" ] || { echo "first_hour_b200.sh: the build has no virtual GPU" >&2; exit 2; }
  launcher=("$vgpu" run --gpu "$virtual" --sms 8 --)
  capability=$(case $virtual in h200) echo 9.0 ;; b300) echo 10.3 ;; *) echo 10.0 ;; esac)
else
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1)
  [ -n "$capability" ] || { echo "first_hour_b200.sh: no NVIDIA GPU is at hand" >&2; exit 2; }
fi
case $capability in
  10.0 | 10.3) family=sm100 suite=Sm100 ;;
  9.0) family=sm90 suite=Sm90 ;;
  *) echo "first_hour_b200.sh: compute capability $capability; legal: 10.0, 10.3, 9.0" >&2; exit 2 ;;
esac

failed=0
say() { # STEP VERDICT
  printf '%-44s %s\n' "$1" "$2" | tee -a "$summary"
}
# One command with a time-out; its output in a file. A hang is dumped before it is ended.
run() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 log=$out/$1.txt begin=$SECONDS code
  shift 2
  "${launcher[@]}" "$@" > "$log" 2>&1 &
  local child=$!
  while kill -0 "$child" 2> /dev/null; do
    if [ $((SECONDS - begin)) -ge "$limit" ]; then
      dump "$child" "$out/$name.hang.txt"
      kill -9 "$child" 2> /dev/null
      wait "$child" 2> /dev/null
      say "$name" "HANGS after $limit s, see $name.hang.txt"
      failed=$((failed + 1))
      return 1
    fi
    sleep 0.2
  done
  wait "$child"
  code=$?
  if [ $code = 0 ]; then
    say "$name" "ok, $((SECONDS - begin)) s"
  else
    say "$name" "FAILED (exit status $code), $((SECONDS - begin)) s: $(grep -aE 'FAILED|Failure|error|differ' "$log" | head -1 | cut -c1-120)"
    failed=$((failed + 1))
  fi
  return $code
}
# Where every warp of a hanging kernel stands, and its shared memory: the barriers lie behind the
# tiles, at the end of what the kernel uses (Conv2dSmem).
dump() { # PID FILE
  command -v cuda-gdb > /dev/null || { echo "no cuda-gdb" > "$2"; return; }
  timeout 60 cuda-gdb -batch -p "$1" -ex 'info cuda kernels' -ex 'info cuda blocks' \
    -ex 'info cuda warps' -ex 'info cuda lanes' -ex 'bt' \
    -ex 'print sizeof(*(@shared unsigned long long*)0)' \
    -ex 'x/512gx (@shared unsigned long long*)0x36000' > "$2" 2>&1
}
wants() { case " $steps " in *" $1 "*) true ;; *) false ;; esac }

# ---- 1. What machine this is ----------------------------------------------------------------------
if wants driver; then
  {
    date -u
    git -C "$root" rev-parse HEAD 2> /dev/null
    if [ -z "$virtual" ]; then
      nvidia-smi -q
      nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit --format=csv
    fi
    "${launcher[@]}" "$convoy" info
  } > "$out/driver.txt" 2>&1
  say driver "$(grep -aE 'Driver Version|Virtual|NVIDIA' "$out/driver.txt" | head -1 | tr -s ' ')"
fi

# ---- 2. Probes: instructions, before any kernel ---------------------------------------------------
if wants probes; then
  if [ $family = sm100 ]; then
    # A process each: a fault in one does not poison the next.
    wrong=0
    for name in $("$probe" --list); do
      run "probe.$name" 60 "$probe" "$name" > /dev/null || wrong=$((wrong + 1))
    done
    say probes "$wrong of $("$probe" --list | wc -l) are not as PTX says"
  elif [ -x "$build/vgpu/bin/vgpu_probe" ] && [ -z "$virtual" ]; then
    run probes 600 python3 "$root/vgpu/probe/compare.py" "$root/vgpu/probe/h200.txt" -- \
      "$build/vgpu/bin/vgpu_probe"
  fi
fi

# ---- 3. The ladder: one tile, one configuration at a time, then whole layers ----------------------
if wants ladder; then
  run ladder.refusals 120 "$tests" --gtest_filter="*${suite}Refusal*:*${suite}Config.*:*${suite}TensorMap*"
  if [ $family = sm100 ]; then
    # Shape 0 is one tile; 8 has several waves; 4 a half-filled span; 24 phases; 21 a cache.
    for config in $(seq 0 15); do
      run "ladder.config$config.one_tile" 60 "$tests" --gtest_filter="*Shapes*/config${config}_shape0" || continue
      run "ladder.config$config.all_shapes" 300 "$tests" --gtest_filter="*Shapes*/config${config}_shape*"
    done
  fi
  for layer in n1h64w64c128k128r3s3ph1pw1 n1h128w128c256k256r3s3ph1pw1 n1h128w128c512k256; do
    [ -n "$virtual" ] && break
    run "ladder.layer.$layer" 120 "$convoy" bench "$layer" --device cuda
  done
fi

# ---- 4. All tests, natively -----------------------------------------------------------------------
if wants tests; then
  filter="*"
  { [ -n "$quick" ] || [ -n "$virtual" ]; } && filter="${suite}.*"
  run tests.kernels 1800 "$tests" --gtest_filter="$filter"
  run tests.templates 600 "$templates" --gtest_filter="*$suite*"
fi

# ---- 5. compute-sanitizer -------------------------------------------------------------------------
if wants sanitizer && [ -z "$virtual" ]; then
  if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck synccheck initcheck; do
      run "sanitizer.$tool" 900 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" \
        --gtest_filter="*Shapes*_shape4:*Shapes*_shape21:${suite}Small.*"
    done
  else
    say sanitizer "left out: no compute-sanitizer"
  fi
fi

# ---- 6. Random problems ---------------------------------------------------------------------------
if wants fuzz; then
  count=2000 flops=1e9
  { [ -n "$quick" ] || [ -n "$virtual" ]; } && count=10 flops=2e6
  run fuzz 1200 "$build/tests/fuzz/conv/conv_fuzz" --device cuda --all-kernels --seed 1 \
    --count "$count" --max-flops "$flops"
fi

# ---- 7. Times: every kernel of every layer, beside cuDNN ------------------------------------------
sets="flux1_vae_decode qwen_image_vae_decode resnet50 sdxl_unet wan21_vae_decode"
if wants tune && [ -z "$virtual" ]; then
  # shellcheck disable=SC2086
  run tune 1800 "$convoy" tune $sets --output "$out/tuning.txt" --csv "$out/tune.csv"
fi
if wants cudnn && [ -z "$virtual" ]; then
  versus=$(find "$build" -name 'convoy_vs_cudnn*' -type f -perm -u+x | head -1)
  if [ -n "$versus" ]; then
    for set in $sets; do
      run "cudnn.$set" 900 "$convoy" bench "$set" --vs cudnn
    done
  else
    say cudnn "left out: the comparison is not built (cuDNN was not found)"
  fi
fi

# ---- 8. The model's constants from these times ----------------------------------------------------
if wants model && [ -f "$out/tune.csv" ]; then
  fit=$build/bin/${family}_fit_model
  if [ -x "$fit" ]; then
    run model 300 "$fit" "$out/tune.csv" --folds 4
  else
    say model "tune.csv is in the archive; $family has no program that fits its model yet"
  fi
fi

say "failed steps" "$failed"
archive=$out.tar.gz
tar -C "$(dirname "$out")" -czf "$archive" "$(basename "$out")"
echo "send back: $archive"
[ "$failed" = 0 ]
