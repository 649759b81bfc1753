#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `make test` runs: the default tests, those under sanitizers, a bounded run of the fuzzers. The
# other builds take what the first leaves of the processors: where it links, configures or waits for
# its last test. Their tests have the machine to themselves, but for those of PyTorch, which run beside
# them on the first build where CONVOY_TORCH_PYTHON is that of .deps/torch (.ci/run).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/beside.bash

beside test-builds nice -n 19 make build-asan build-fuzz
make test-default
join test-builds
if [ -n "${CONVOY_TORCH_PYTHON:-}" ]; then
  beside test-torch env CONVOY_LIBRARY="$PWD/build/test/libconvoy.so" scripts/test_torch.sh
fi
make test-asan
make test-fuzz
[ -z "${CONVOY_TORCH_PYTHON:-}" ] || join test-torch
