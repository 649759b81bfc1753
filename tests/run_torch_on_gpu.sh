#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The Python package on a GPU: its tests, then times, memory and errors of the autoencoders of
# diffusers, as CSV into FOLDER. CONVOY_LIBRARY names the library; python3 has torch and diffusers.
#
#   tests/run_torch_on_gpu.sh FOLDER [SECONDS]     SECONDS: for the times, 240 without
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?a folder for what is measured}
seconds=${2:-240}
export PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
failed=0

timed() {
  local begun=$SECONDS
  "$@" || { failed=1; echo "FAILED: $*"; }
  echo "took $((SECONDS - begun)) s: $*"
}

for test in torch styles; do
  CONVOY_TEST_DEVICE=cuda timed timeout 90 python3 "tests/python/test_$test.py" 2>&1 |
    grep -v Warning
done
timed timeout 30 python3 -m convoy.bench calls
timed timeout 30 env CONVOY_TORCH_LIBRARY=off python3 -m convoy.bench calls
timed python3 -m convoy.bench vae tiny flux dc qwen hunyuan15 temporal ltx cogvideox hunyuan wan21 \
  mochi ltx2 flux2 wan22 --parts encode --rounds 3 --one-format --budget $((seconds / 2)) \
  --csv "$out/encode.csv"
timed python3 -m convoy.bench vae tiny dc qwen flux ltx cogvideox hunyuan wan21 mochi ltx2 flux2 \
  hunyuan15 temporal wan22 --variants "${VARIANTS:-convoy,graph}" --rounds 3 --one-format \
  --budget $((seconds / 2)) --csv "$out/decode.csv"
exit $failed
