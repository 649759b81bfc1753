#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Names each given source file whose first two lines hold no SPDX line.
set -euo pipefail
bad=0
for file in "$@"; do
  first='' second=''
  { IFS= read -r first; IFS= read -r second; } < "$file" || true
  if [[ "$first$second" != *'SPDX-License-Identifier: Apache-2.0'* ]]; then
    echo "$file: the SPDX line is missing"
    bad=1
  fi
done
exit $bad
