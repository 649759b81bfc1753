#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what the build needs and this machine lacks, saying what it does. Safe to run again.
#
#   scripts/bootstrap.sh            for the build and the demo
#   scripts/bootstrap.sh --tests    for the tests too
#   scripts/bootstrap.sh --sass     only NVIDIA's disassembler, into .deps/cuda-tools, for
#                                   scripts/sm100_evidence.py
#
# System packages come from apt, as root or with sudo. Where no CUDA compiler of version 13 or later
# is found, NVIDIA's Python wheels of it are unpacked into .cuda (CONVOY_CUDA=OFF leaves that out).
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ make cmake ninja-build git ca-certificates python3 python3-venv
          libdnnl-dev libzstd-dev liblz4-dev libpng-dev libcli11-dev nlohmann-json3-dev)
optional=(libjpeg-dev)  # To read JPEG; the build goes on without.
if [ "${1:-}" = --tests ]; then
  packages+=(libgtest-dev clang libclang-rt-dev libomp-dev python3-numpy)
fi

say() { printf 'bootstrap: %s\n' "$*"; }

install_packages() {
  local missing=() package
  if ! command -v apt-get > /dev/null; then
    say "no apt-get here: make sure that these are installed: ${packages[*]}"
    return
  fi
  for package in "${packages[@]}"; do
    if ! dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed'; then
      missing+=("$package")
    fi
  done
  local wanted=()
  for package in "${optional[@]}"; do
    if ! dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed'; then
      wanted+=("$package")
    fi
  done
  if [ ${#missing[@]} -eq 0 ] && [ ${#wanted[@]} -eq 0 ]; then
    say "system packages: all there"
    return
  fi
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo > /dev/null; then
      [ ${#missing[@]} -gt 0 ] || return 0  # Only what may be left out.
      say "missing: ${missing[*]}"
      say "neither root nor sudo: ask an administrator to install them"
      exit 1
    fi
    sudo=(sudo)
  fi
  say "installing: ${missing[*]} ${wanted[*]}"
  # A list of packages that is out of date names files that are gone.
  "${sudo[@]}" apt-get update -q
  if [ ${#missing[@]} -gt 0 ]; then
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends "${missing[@]}"
  fi
  if [ ${#wanted[@]} -gt 0 ]; then
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -q -y --no-install-recommends "${wanted[@]}" ||
      say "not to be had: ${wanted[*]}; going on without"
  fi
}

# Release of an nvcc, as major * 100 + minor; 0 where it is none.
nvcc_release() {
  local banner
  banner=$("$1" --version 2> /dev/null || true)
  if [[ $banner =~ release\ ([0-9]+)\.([0-9]+) ]]; then
    echo $((BASH_REMATCH[1] * 100 + BASH_REMATCH[2]))
  else
    echo 0
  fi
}

find_nvcc() {
  local nvcc
  for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc .cuda/bin/nvcc; do
    if [ -n "$nvcc" ] && [ "$(nvcc_release "$nvcc")" -ge 1300 ]; then
      echo "$nvcc"
      return
    fi
  done
}

# NVIDIA's wheels unpack to nvidia/cu13/{bin,include,lib,nvvm}: a toolkit but for two links.
install_cuda() {
  local wheels=.deps/cuda-wheels version='13.0.*'
  rm -rf .cuda "$wheels"
  python3 -m venv .deps/venv &&
    .deps/venv/bin/python -m pip install -q --no-deps --target "$wheels" \
      "nvidia-cuda-nvcc==$version" "nvidia-nvvm==$version" "nvidia-cuda-crt==$version" \
      "nvidia-cuda-runtime==$version" "nvidia-cuda-cccl==$version" &&
    mv "$wheels/nvidia/cu13" .cuda &&
    ln -s lib .cuda/lib64 &&
    ln -s libcudart.so.13 .cuda/lib/libcudart.so &&
    rm -rf "$wheels" &&
    [ "$(nvcc_release .cuda/bin/nvcc)" -ge 1300 ]
}

# NVIDIA's wheels of cuobjdump and nvdisasm, which it calls.
install_disassembler() {
  rm -rf .deps/cuda-tools
  python3 -m venv .deps/venv &&
    .deps/venv/bin/python -m pip install -q --no-deps --target .deps/cuda-tools \
      'nvidia-cuda-cuobjdump==13.*' 'nvidia-cuda-nvdisasm==13.*' &&
    .deps/cuda-tools/nvidia/cu13/bin/cuobjdump --version > /dev/null
}

if [ "${1:-}" = --sass ]; then
  install_disassembler
  say "disassembler: .deps/cuda-tools/nvidia/cu13/bin/cuobjdump"
  exit
fi
install_packages
if [ "${CONVOY_CUDA:-AUTO}" = OFF ]; then
  say "CUDA: left out, CONVOY_CUDA=OFF"
elif nvcc=$(find_nvcc) && [ -n "$nvcc" ]; then
  say "CUDA: $nvcc"
else
  say "CUDA: no nvcc 13 or later found; unpacking NVIDIA's compiler and runtime wheels into .cuda"
  if install_cuda; then
    say "CUDA: .cuda/bin/nvcc"
  else
    rm -rf .cuda
    say "CUDA: the wheels could not be installed; going on without CUDA, for the CPU alone"
  fi
fi
