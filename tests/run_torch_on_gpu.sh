#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The Python package on a GPU: its tests, then times, memory and errors of the autoencoders of
# diffusers, as CSV into FOLDER. CONVOY_LIBRARY names the library; python3 has torch and diffusers.
#
#   tests/run_torch_on_gpu.sh FOLDER [SECONDS]     SECONDS: for the times, 240 without
#
# TESTS="" leaves the tests out; CLASSES, PARTS and VARIANTS are what is timed.
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

for test in ${TESTS-torch styles calls}; do
  if [ "$test" = calls ]; then
    timed timeout 30 python3 -m convoy.bench calls
    timed timeout 30 env CONVOY_TORCH_LIBRARY=off python3 -m convoy.bench calls
  else
    CONVOY_TEST_DEVICE=cuda timed timeout 90 python3 tests/python/run.py "$test"
  fi
done
# What matters most comes first: what the seconds do not suffice for is left out and named.
classes=${CLASSES:-wan21 cogvideox flux qwen ltx mochi hunyuan dc tiny hunyuan15 temporal ltx2 flux2 wan22}
for part in ${PARTS:-decode encode}; do
  # shellcheck disable=SC2086
  timed python3 -m convoy.bench vae $classes --parts "$part" --rounds 3 --one-format \
    --variants "${VARIANTS:-eager,convoy,graph}" --budget $((seconds / 2)) \
    --csv "$out/vae_$part.csv"
done
exit $failed
