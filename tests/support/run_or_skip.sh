#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a GoogleTest program; its exit status, but 77 where every one of its tests was skipped.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$1" --gtest_brief=1 > "$log" 2>&1
status=$?
cat "$log"
if [ $status -eq 0 ] && grep -q '^\[  PASSED  \] 0 tests' "$log"; then exit 77; fi
exit $status
