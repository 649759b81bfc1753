#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the host code (build/default must be configured), or over the given files.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build/default}
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
  mapfile -t files < <(git ls-files 'src/core/*.cpp' 'src/dispatch/*.cpp' 'src/cpu/*.cpp' \
    'src/reference/*.cpp' 'cli/*.cpp')
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "$build"
