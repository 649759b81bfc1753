#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `make test` runs: the default tests, those under sanitizers, a bounded run of the fuzzers. The
# other builds take what the first leaves of the processors: where it links, configures or waits for
# its last test. Their tests have the machine to themselves.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/beside.bash

beside test-builds nice -n 19 make build-asan
make test-default
join test-builds
make test-asan
make test-fuzz
