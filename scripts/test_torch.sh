#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tests that need PyTorch and diffusers, which come into .deps/torch: 5.5 GB, a minute.
#
#   scripts/test_torch.sh            every test
#   scripts/test_torch.sh NAME...    of torch, decode, styles, programs, grown, chains, bench,
#                                    accelerate, compiled, comfyui, vae_decode; or one file's: accelerate_norms
#   scripts/test_torch.sh set-up     only .deps/torch
#
# TORCH_VERSION=2.11.0 takes that version. CONVOY_LIBRARY=... tests that build of the library; else
# build/torch is built, for the CPU alone, or with CONVOY_CUDA_BUILD=ON for the GPU too.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=.deps/torch

say() { printf 'test-torch: %s\n' "$*"; }

wanted="torch${TORCH_VERSION:+==$TORCH_VERSION} numpy diffusers"
if [ "$(cat $environment/wanted 2> /dev/null)" != "$wanted" ]; then
  say "putting $wanted into $environment"
  rm -rf $environment
  python3 -m venv $environment
  # NOTE: uv fetches and unpacks several wheels at a time: a minute, where pip takes three and a half.
  $environment/bin/python -m pip install -q --disable-pip-version-check uv
  [ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}
  # shellcheck disable=SC2086
  $environment/bin/uv pip install -q --no-cache --python $environment/bin/python $wanted
  printf '%s\n' "$wanted" > $environment/wanted
fi
[ "${1:-}" != set-up ] || exit 0
if [ -z "${CONVOY_LIBRARY:-}" ]; then
  cmake --preset test -B build/torch -DCONVOY_CUDA="${CONVOY_CUDA_BUILD:-OFF}" -DCONVOY_VGPU=OFF \
    -DCONVOY_TESTS=OFF -DCONVOY_CLI=OFF -DCONVOY_TORCH=ON \
    -DCONVOY_TORCH_PYTHON="$PWD/$environment/bin/python"
  cmake --build build/torch --parallel "${JOBS:-$(nproc)}"
  CONVOY_LIBRARY=$PWD/build/torch/libconvoy.so
fi
export CONVOY_LIBRARY PYTHONPATH=$PWD/python
[ $# -gt 0 ] || set -- torch decode styles programs grown chains bench accelerate compiled comfyui vae_decode
for test in "$@"; do
  if [ "$test" = vae_decode ]; then
    # The example as a user builds it: against what is installed.
    folder=$(dirname "$CONVOY_LIBRARY")
    cmake --install "$folder" --prefix "$folder/prefix" > /dev/null
    cmake -S examples/vae_decode -B "$folder/vae_decode" -DCMAKE_PREFIX_PATH="$folder/prefix" \
      -DVAE_DECODE_CUDA="${CONVOY_CUDA_BUILD:-OFF}" > /dev/null
    cmake --build "$folder/vae_decode"
    export VAE_DECODE=$folder/vae_decode/vae_decode
  fi
  say "$test, on $CONVOY_LIBRARY"
  $environment/bin/python tests/python/run.py "$test"
  if [ "$test" = torch ]; then
    say "$test, without the operators in C++"
    CONVOY_TORCH_LIBRARY=off $environment/bin/python tests/python/run.py "$test"
  fi
done
