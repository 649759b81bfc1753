#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the pages and the reference as a site, build/docs/html; warnings are errors. Needs Python
# 3.11 or later and doxygen (installed with apt where root); the Python packages go into .deps/docs.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.deps/docs
requirements=docs/site/requirements.txt
stamp=$venv/requirements.txt

if ! command -v doxygen > /dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "docs: installing doxygen"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends doxygen \
      > /dev/null
  else
    echo "docs: doxygen is missing; install it (Debian, Ubuntu: apt-get install doxygen)" >&2
    exit 1
  fi
fi
if ! cmp -s "$requirements" "$stamp"; then
  echo "docs: installing $requirements into $venv"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
  cp "$requirements" "$stamp"
fi

started=$SECONDS
mkdir -p build/docs
doxygen docs/site/Doxyfile
# NOTE: a page that was read is not read again, so what a failed build warned of would be silent in
# the next one.
trap 'rm -rf build/docs/doctrees' ERR
"$venv/bin/sphinx-build" -q -W --keep-going -b html -j "${JOBS:-2}" \
  -c docs/site -d build/docs/doctrees . build/docs/html
echo "docs: build/docs/html/index.html, in $((SECONDS - started)) s"
