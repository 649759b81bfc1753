#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# convoy tune and what plans make of it, on the GPU at hand (a virtual one serves):
#
#   tests/cli/tune_test.sh CONVOY
set -eu
convoy=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CONVOY_TUNING=$folder/tuning.txt
shape=n1h8w8c64k64r1s1
fail() {
  echo "tune_test.sh: $1" >&2
  cat "$folder"/* >&2
  exit 1
}
tune() {
  "$convoy" tune $shape --time 0 --reach 1.2 --csv "$folder/$1.csv" $2
  file=$(cat "$CONVOY_TUNING")
}
# The kernel that a plan takes, as "KERNEL TIME".
chosen() {
  "$convoy" explain $shape $1 | sed -n 's/^  \* \([^ ]*\) .* about *\([^ ]*\) us$/\1 \2/p'
}
count() {
  printf '%s\n' "$file" | grep -c "$1" || true
}

tune plain ""
[ "$(count '| plain |')" = 1 ] || fail "not one choice for what was measured"
grep -q "^$shape,none,[^,]*,[^,]*,[^,]*$" "$folder/plain.csv" || fail "plain.csv"
tune silu "--bias --activation silu --residual"
[ "$(count '| plain |')" = 1 ] || fail "the plain choice is gone"
[ "$(count '| activation+residual |')" = 1 ] || fail "no choice for the activation's class"
grep -q "^$shape,bias_fp32+silu+residual,[^,]*,[^,]*,[^,]*$" "$folder/silu.csv" || fail "silu.csv"

# A plan takes the kernel that the file names for its class, whichever it is.
for kernel in sm90_fprop_128x64_pingpong_bf16 sm90_fprop_192x128_bf16; do
  printf '%s\n' "$file" | sed "/| activation+residual |/s/^[^ ]* [^ ]*/1.5 $kernel/" > "$CONVOY_TUNING"
  [ "$(chosen '--activation gelu --residual')" = "$kernel 1.5" ] || fail "$kernel is not chosen"
done
[ "$(chosen '--activation silu')" != "$kernel 1.5" ] || fail "$kernel was not measured without a residual"

tune dense --dense
[ "$(count ' dense | plain |')" = 1 ] || fail "no choice for dense filters"
[ "$(count ' packed | plain |')" = 1 ] || fail "the choice for packed filters is gone"

# --resume leaves alone what is there, and does the rest.
printf '%s\n' "$file" | sed "/ packed | plain |/s/^[^ ]* /77.7 /" > "$CONVOY_TUNING"
"$convoy" tune $shape n1h8w8c64k64r3s3ph1pw1 --time 0 --reach 1.01 --resume > "$folder/resume.txt"
grep -q "^1 shapes are in $CONVOY_TUNING already" "$folder/resume.txt" || fail "no word of what is known"
file=$(cat "$CONVOY_TUNING")
[ "$(count '^77.70 .* packed | plain |')" = 1 ] || fail "--resume measured what was known"
[ "$(count '| plain | .* f1x3x3 ')" = 1 ] || fail "--resume left out what was not known"

# Two at once lose nothing of each other.
rm "$CONVOY_TUNING"
for size in 5 6; do
  "$convoy" tune n1h${size}w8c64k64r1s1 --time 0 --reach 1.01 > "$folder/$size.txt" &
done
wait
file=$(cat "$CONVOY_TUNING")
[ "$(count '| plain |')" = 2 ] || fail "one of two lost the other's choice"
