#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks the sources without building them, saying how long each step took.
#
#   scripts/lint.sh                 every step
#   scripts/lint.sh STEP [FILE...]  one step, over the given files where it takes any:
#                                   conflicts, format, width, spdx, shell, pages,
#                                   arrows, ruff, mypy, unused, tidy
#   scripts/lint.sh tidy-deep       clang's analyzer, which takes four times as long as tidy
#   scripts/lint.sh reformat        runs clang-format over the sources
#
# The tools come at the versions of scripts/lint-requirements.txt, into .deps/lint.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.deps/lint
build=build/lint

say() { printf 'lint: %s\n' "$*"; }

# A virtual environment of the pinned versions, made again where they change.
set_up() {
  if ! cmp -s scripts/lint-requirements.txt $tools/requirements.txt; then
    say "putting the tools of scripts/lint-requirements.txt into $tools"
    rm -rf $tools
    python3 -m venv $tools
    $tools/bin/python -m pip install -q --disable-pip-version-check -r scripts/lint-requirements.txt
    cp scripts/lint-requirements.txt $tools/requirements.txt
  fi
}

# The files that git knows or would add and that are still there, by pattern.
files() { git ls-files --cached --others --exclude-standard --deduplicate "$@" | while read -r f; do
  if [ -e "$f" ]; then echo "$f"; fi; done; }

step_format() {
  local sources=("$@")
  [ $# -gt 0 ] || mapfile -t sources < <(files '*.c' '*.cpp' '*.cu' '*.cuh' '*.h' '*.hpp')
  $tools/bin/clang-format --dry-run -Werror "${sources[@]}"
}

step_reformat() {
  local sources=("$@")
  [ $# -gt 0 ] || mapfile -t sources < <(files '*.c' '*.cpp' '*.cu' '*.cuh' '*.h' '*.hpp')
  $tools/bin/clang-format -i "${sources[@]}"
}

# clang-format keeps code before column 100, and leaves comments as they are: a diagram would not
# survive it.
step_width() {
  local sources=("$@")
  [ $# -gt 0 ] || mapfile -t sources < <(files '*.c' '*.cpp' '*.cu' '*.cuh' '*.h' '*.hpp')
  python3 - "${sources[@]}" << 'PYTHON'
import sys
wide = [f"{name}:{number}: a comment of {len(line)} columns; legal: up to 100"
        for name in sys.argv[1:]
        for number, line in enumerate(open(name, encoding="utf-8").read().splitlines(), start=1)
        if len(line) > 100 and "//" in line]
sys.exit("\n".join(wide) or 0)
PYTHON
}

step_spdx() {
  local sources=("$@")
  [ $# -gt 0 ] || mapfile -t sources < <(files '*.c' '*.cpp' '*.cu' '*.cuh' '*.h' '*.hpp' '*.py' \
    '*.sh' '*.cmake' '*.cmake.in' '*CMakeLists.txt' Makefile)
  scripts/check_spdx.sh "${sources[@]}"
}

# Conflicts that were left in a file.
step_conflicts() { ! git grep -n -E '^(<<<<<<<|>>>>>>>) ' -- "$@"; }

step_shell() {
  local sources=("$@") source
  [ $# -gt 0 ] || mapfile -t sources < <(files '*.sh' .ci/run)
  for source in "${sources[@]}"; do bash -n "$source"; done
}

step_arrows() {
  scripts/check_arrows.py
  tests/scripts/check_arrows_test.py
}

# Pages: lines, tables, links.
step_pages() {
  scripts/check_docs.py "$@"
  tests/scripts/check_docs_test.py
}

step_ruff() { $tools/bin/ruff check --quiet --output-format concise "${@:-.}"; }

step_mypy() { $tools/bin/mypy --no-error-summary python/convoy scripts/check_arrows.py; }

# The host code of the library, of the program and of the virtual GPU, as CMake compiles it; what
# this machine cannot build is left out. Or the given files of it.
# NOTE: all of it as a unity build, in a fifth of the time: sources that share a compilation share
# its headers; eight at a time, so that no core waits for a long one. What clang-tidy says of the main
# file alone, step_unused says.
step_tidy() {
  local sources=("$@") unity=OFF
  [ $# -gt 0 ] || unity=ON
  [ $unity = OFF ] || build=$build/unity
  mkdir -p $build
  cmake --preset test -B $build -DCMAKE_UNITY_BUILD=$unity -DCMAKE_UNITY_BUILD_BATCH_SIZE=24 -DCMAKE_BUILD_TYPE=Debug -DCONVOY_TESTS=OFF \
    -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON \
    ${CONVOY_CUDA:+-DCONVOY_CUDA=$CONVOY_CUDA} > $build.log 2>&1 ||
    { cat $build.log; return 1; }
  # A shared compilation lies in the build folder; what is checked is its sources' folder's business.
  local config
  for config in $(files '*/.clang-tidy'); do
    if [ -d "$build/${config%/*}" ]; then cp "$config" "$build/$config"; fi
  done
  cmake --build $build --target convoy_git_hash > $build.log 2>&1 || { cat $build.log; return 1; }
  [ $# -gt 0 ] || mapfile -t sources < <(python3 - $build/compile_commands.json << 'PYTHON'
import json, os, re, sys
# A source of several targets is checked once, as the first compiles it.
entries = {os.path.relpath(e["file"]): e for e in reversed(json.load(open(sys.argv[1])))}
json.dump(list(entries.values()), open(sys.argv[1], "w"))
folders = ("src/", "cli/", "bench/", "vgpu/src/", "vgpu/cli/")
size = {}
for name in entries:
    if name.endswith("_cxx.cxx"):
        text = open(name).read()
        size[name] = sum(map(os.path.getsize, re.findall('#include "(.*)"', text)))
    elif name.startswith(folders) and name.endswith(".cpp"):
        size[name] = os.path.getsize(name)
# The largest first, so that no core waits long for the last one.
print(*sorted(size, key=size.get, reverse=True), sep="\n")
PYTHON
)
  [ ${#sources[@]} -gt 0 ] || { say "tidy: no source in $build/compile_commands.json"; return 1; }
  say "tidy: ${#sources[@]} compilations"
  local checks=${tidy_checks:-}
  [ $unity = OFF ] || checks=${checks:+$checks,}-bugprone-suspicious-include
  # NOTE: omp.h is g++'s; its other headers come after clang's.
  local gcc_headers
  gcc_headers=$(g++ -print-file-name=include)
  printf '%s\n' "${sources[@]}" |
    xargs -P "${JOBS:-$(nproc)}" -n 1 $tools/bin/clang-tidy --quiet -p $build "--extra-arg=-idirafter$gcc_headers" \
      ${checks:+"--checks=$checks"} \
      2> >(grep -v -E '^[0-9]+ warnings? (and [0-9]+ errors? )?generated|^Suppressed|^Use -' >&2)
}

# Names that a source declares for itself and never says: misc-unused-using-decls and
# misc-unused-alias-decls of a unity build, where clang-tidy passes them over.
step_unused() {
  local sources=("$@")
  [ $# -gt 0 ] || mapfile -t sources < <(files 'src/*.cpp' 'cli/*.cpp' 'bench/*.cpp' 'vgpu/src/*.cpp' 'vgpu/cli/*.cpp')
  python3 - "${sources[@]}" << 'PYTHON'
import re, sys
found = []
for name in sys.argv[1:]:
    text = re.sub(r"//.*", "", open(name, encoding="utf-8").read())
    for match in re.finditer(r"^\s*(?:using\s+(?:\w*::)+(\w+)\s*;|namespace\s+(\w+)\s*=)", text, re.M):
        word = match[1] or match[2]
        if len(re.findall(rf"\b{word}\b", text[match.end():])) == 0:
            line = text.count("\n", 0, match.end()) + 1
            found.append(f"{name}:{line}: {word} is declared and not used")
sys.exit("\n".join(found) or 0)
PYTHON
}

step_tidy-deep() {
  tidy_checks='clang-analyzer-*,-clang-analyzer-optin.core.EnumCastOutOfRange' step_tidy "$@"
}

set_up
mkdir -p build
steps=(conflicts format width spdx shell pages arrows ruff mypy unused tidy)
arguments=()
if [ $# -gt 0 ]; then
  if ! declare -F "step_$1" > /dev/null; then
    sed -n '3,14s/^# \{0,1\}//p' "$0"
    exit 2
  fi
  steps=("$1")
  arguments=("${@:2}")
fi

failed=()
for step in "${steps[@]}"; do
  began=$SECONDS
  # NOTE: a shell of its own each: `set -e` counts for nothing in a function that `if` calls.
  if "$BASH" -c "$(declare -f); set -euo pipefail; $(declare -p tools build); step_$step \"\$@\"" \
       bash ${arguments[@]+"${arguments[@]}"}; then
    say "$step: passed in $((SECONDS - began)) s"
  else
    say "$step: FAILED in $((SECONDS - began)) s"
    failed+=("$step")
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  say "failed: ${failed[*]}"
  exit 1
fi
