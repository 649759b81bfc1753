#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The first hour on a chip: everything that says whether the Blackwell kernels are right and fast on
# it, in the order in which a failure explains the next one, each step with a verdict, going on
# wherever it can. The end is one archive to send back.
#
#   scripts/first_hour_b200.sh [--build FOLDER] [--out FOLDER] [--virtual b200|b300|h200]
#                              [--quick] [--seconds N] [--steps "driver probes ladder ..."]
#
# On a B200, B300 (or H100, H200: the Hopper half). --virtual runs what can run there on the virtual
# GPU of the build, to try the script itself. --quick: the ladder and a share of the tests and times.
# --seconds: what has not begun by then is left out, and said to be. The build folder (default:
# build/default) is configured and built where it is not yet. Every command has a time-out; one that
# hangs is dumped (warps, barriers), ended, and the next one runs. The archive is written whatever
# happens. Exit status: 0 where every step that ran passed.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/default
out=$root/first-hour
virtual=
quick=
seconds=
steps="driver probes ladder tests sanitizer fuzz tune cudnn model"
while [ $# -gt 0 ]; do
  case $1 in
    --build) shift; build=$(realpath "$1") ;;
    --out) shift; out=$1 ;;
    --virtual) shift; virtual=$1 ;;
    --quick) quick=yes ;;
    --seconds) shift; seconds=$1 ;;
    --steps) shift; steps=$1 ;;
    *) sed -n '4,18p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
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

failed=0 runs=0 left_out=0
say() { # STEP VERDICT
  printf '%-44s %s\n' "$1" "$2" | tee -a "$summary"
}
# The archive, also of a session that was interrupted.
archive=$out.tar.gz
finish() {
  say "failed" "$failed of $runs commands, $left_out left out for time"
  tar -C "$(dirname "$out")" -czf "$archive" "$(basename "$out")"
  echo "send back: $archive"
}
trap finish EXIT
child=''
trap '[ -z "$child" ] || kill -9 -- "-$child"; say interrupted "in step ${step:-none}"; exit 130' INT TERM
# wants STEP: whether it runs; ends the one before with a verdict.
step='' step_failed=0 step_runs=0
wants() {
  if [ -n "$step" ] && [ $runs -gt $step_runs ]; then
    if [ $failed = $step_failed ]; then
      say "== $step" "passed, $((runs - step_runs)) commands"
    else
      say "== $step" "FAILED, $((failed - step_failed)) of $((runs - step_runs)) commands"
    fi
  fi
  step=$1 step_failed=$failed step_runs=$runs
  case " $steps end " in *" $1 "*) true ;; *) step=''; false ;; esac
}
# One command with a time-out; its output in a file. A hang is dumped before it is ended. A test
# program that selects no test has failed, one that skips them all is left out; tests that skip are
# counted.
run() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 log=$out/$1.txt begin=$SECONDS code skipped cut=
  shift 2
  if [ -n "$seconds" ]; then
    if [ $SECONDS -ge "$seconds" ]; then
      say "$name" "left out: $seconds s are over"
      left_out=$((left_out + 1))
      return 1
    fi
    [ $((seconds - SECONDS)) -ge "$limit" ] || { limit=$((seconds - SECONDS)) cut=yes; }
  fi
  runs=$((runs + 1))
  # In a group of its own, so that what it starts ends with it.
  setsid "${launcher[@]}" "$@" > "$log" 2>&1 &
  child=$!
  while kill -0 "$child" 2> /dev/null; do
    if [ $((SECONDS - begin)) -ge "$limit" ]; then
      [ -n "$cut" ] || dump "$child" "$out/$name.hang.txt"
      kill -9 -- "-$child" 2> /dev/null || kill -9 "$child" 2> /dev/null
      wait "$child" 2> /dev/null
      child=''
      if [ -n "$cut" ]; then
        say "$name" "left out: cut off after $limit s, $seconds s are over"
        left_out=$((left_out + 1)) runs=$((runs - 1))
        return 1
      fi
      say "$name" "HANGS after $limit s, see $name.hang.txt"
      failed=$((failed + 1))
      return 1
    fi
    sleep 0.2
  done
  wait "$child"
  code=$?
  child=''
  if [ $code = 0 ] && grep -q '^\[==========\] Running 0 tests' "$log"; then
    code="no test of that name"
  fi
  if [ $code = 0 ] && grep -q '^\[  PASSED  \] 0 tests' "$log"; then
    say "$name" "left out: every test skipped, $(grep -am1 -B1 'Skipped' "$log" | head -1 | cut -c1-80)"
    runs=$((runs - 1))
    return 0
  fi
  skipped=$(grep -c '^\[  SKIPPED \] .*ms)' "$log")
  if [ "$code" = 0 ]; then
    [ "$skipped" = 0 ] && skipped= || skipped=", $skipped skipped"
    say "$name" "ok, $((SECONDS - begin)) s$skipped"
    return 0
  fi
  say "$name" "FAILED (exit status $code), $((SECONDS - begin)) s: $(grep -aE 'FAILED|Failure|error|differ' "$log" | head -1 | cut -c1-120)"
  failed=$((failed + 1))
  return 1
}
# Where the warps of a hanging kernel stand, and all shared memory of a CTA: the barriers lie behind
# the tiles, in the order of Conv2dSmem, whose offsets follow from the kernel's name and the commit.
# The virtual GPU reports deadlocks itself, with every barrier.
dump() { # PID FILE
  if [ -n "$virtual" ]; then
    echo "the virtual GPU was still running: no deadlock" > "$2"
    return
  fi
  {
    timeout 30 nvidia-smi -q -d UTILIZATION,CLOCK,PERFORMANCE,ECC
    dmesg 2> /dev/null | grep -i xid | tail -5
    if command -v cuda-gdb > /dev/null; then
      # shellcheck disable=SC2016  # $pc is the debugger's.
      timeout 120 cuda-gdb -batch -p "$1" -ex 'info cuda kernels' -ex 'info cuda sms' \
        -ex 'info cuda blocks' -ex 'info cuda warps' -ex 'info cuda lanes' -ex 'bt' \
        -ex 'x/8i $pc' -ex 'x/29056gx (@shared unsigned long long*)0'
    else
      echo "no cuda-gdb: no warps, no barriers"
    fi
  } > "$2" 2>&1
}

# ---- 1. What machine this is ----------------------------------------------------------------------
if wants driver; then
  if [ -z "$virtual" ]; then
    query=name,driver_version,clocks.max.sm,clocks.sm,clocks.max.mem,power.limit,ecc.mode.current,mig.mode.current
    { date -u; git -C "$root" rev-parse HEAD; timeout 60 nvidia-smi -q; } > "$out/machine.txt" 2>&1
    run driver 60 nvidia-smi --query-gpu="$query" --format=csv,noheader &&
      say driver.is "$(head -1 "$out/driver.txt")"
  fi
  run info 60 "$convoy" info && say info.is "$(grep -aE "$capability" "$out/info.txt" | head -1)"
fi

# ---- 2. Probes: instructions, before any kernel ---------------------------------------------------
if wants probes; then
  if [ $family = sm100 ]; then
    # A process each: a fault in one does not poison the next.
    before=$failed
    for name in $(timeout 60 "$probe" --list); do
      run "probe.$name" 60 "$probe" "$name" > /dev/null
    done
    say probes "$((failed - before)) of $(timeout 60 "$probe" --list | wc -l) are not as PTX says"
  elif [ -x "$build/vgpu/bin/vgpu_probe" ] && [ -z "$virtual" ]; then
    run probes 600 python3 "$root/vgpu/probe/compare.py" "$root/vgpu/probe/h200.txt" -- \
      "$build/vgpu/bin/vgpu_probe"
  fi
fi

# ---- 3. The ladder: one tile, one configuration at a time, then whole layers ----------------------
if wants ladder; then
  if [ $family = sm90 ]; then
    # Seven small problems of each instance, on two multiprocessors.
    for kernel in $(timeout 60 "$convoy" info --json | grep -o '"sm90_[a-z0-9_]*"' | tr -d '"'); do
      [ -n "$quick$virtual" ] && [[ $kernel = *fp16 ]] && continue
      run "ladder.$kernel" 120 env CONVOY_TEST_KERNEL="$kernel" "$tests" --gtest_filter='Sm90Small.*'
    done
  else
    run ladder.refusals 120 "$tests" --gtest_filter="*Sm100Refusal*:*Sm100Config.*:*Sm100TensorMap*"
    # Shape 0 is one tile; 8 has several waves; 4 a half-filled span; 24 phases; 21 a cache.
    configs=$(timeout 60 "$tests" --gtest_list_tests --gtest_filter='*Sm100Shapes*_shape0' 2> /dev/null |
      grep -o 'config[0-9]*')
    [ -n "$configs" ] || { say ladder "FAILED: the tests list no configuration"; failed=$((failed + 1)); }
    for config in $configs; do
      run "ladder.$config.one_tile" 60 "$tests" --gtest_filter="*Shapes*/${config}_shape0" || continue
      [ -n "$quick" ] && continue
      run "ladder.$config.all_shapes" 300 "$tests" --gtest_filter="*Shapes*/${config}_shape*"
    done
    # Operands that threads have written, of both CTAs of a pair.
    run ladder.borders 300 "$tests" --gtest_filter='Sm100.BorderOf*'
    run ladder.prologue 300 "$tests" --gtest_filter='PrologueInPlace.*'
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
      if [ $family = sm100 ]; then
        run "sanitizer.$tool" 900 compute-sanitizer --tool "$tool" --error-exitcode 9 "$tests" \
          --gtest_filter="*Shapes*_shape4:*Shapes*_shape21:Sm100.BorderOfPatches:PrologueInPlace.*"
        continue
      fi
      # Each way through the kernel; tests/kernels/sanitize_sm90.sh takes every instance.
      for kernel in sm90_fprop_128x128_pingpong_halo_bf16 sm90_fprop_96x128_swapped_bf16 \
        sm90_fprop_64x128_splitk_bf16 sm90_fprop_128x128_pingpong_normalised_bf16; do
        run "sanitizer.$tool.$kernel" 300 env CONVOY_TEST_KERNEL="$kernel" compute-sanitizer \
          --tool "$tool" --error-exitcode 9 "$tests" --gtest_filter='Sm90Small.*'
      done
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
if wants tune; then
  shapes=$sets
  # Times of the interpreter say nothing: that each kernel runs and is written down.
  [ -n "$quick" ] && shapes="n1h64w64c128k128r3s3ph1pw1 n1h32w32c256k256r1s1"
  [ -n "$virtual" ] && shapes="n1h8w8c64k64r1s1 n1h8w8c64k64r3s3ph1pw1 n1h8w8c128k64r1s1"
  # shellcheck disable=SC2086
  run tune 1800 "$convoy" tune $shapes --output "$out/tuning.txt" --csv "$out/tune.csv"
fi
if wants cudnn && [ -z "$virtual" ]; then
  versus=$(find "$build" -name 'convoy_vs_cudnn*' -type f -perm -u+x | head -1)
  if [ -n "$versus" ]; then
    [ -n "$quick" ] && sets=resnet50
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
  multiprocessors=$(grep -aoE '[0-9]+ SMs' "$out/info.txt" 2> /dev/null | head -1 | cut -d' ' -f1)
  : "${multiprocessors:=$([ $family = sm90 ] && echo 132 || echo 148)}"
  folds=()
  [ $family = sm90 ] && folds=(--folds 4)
  launcher=()
  [ -x "$fit" ] || run model.build 600 cmake --build "$build" --target "${family}_fit_model"
  [ -x "$fit" ] && run model 300 "$fit" "$out/tune.csv" --multiprocessors "$multiprocessors" "${folds[@]}"
fi

wants end
[ "$failed" = 0 ]
