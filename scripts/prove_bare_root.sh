#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Proves that `make demo` and `make test` need nothing but git and make: makes a bare root file
# system with debootstrap, clones this repository's HEAD into it and runs both there.
#
#   sudo scripts/prove_bare_root.sh FOLDER [SUITE [COMMAND...]]
#
# FOLDER   where the root is made, some gigabytes; it must not exist yet
# SUITE    bookworm (Debian 12, the default), trixie (Debian 13) or noble (Ubuntu 24.04)
# COMMAND  what runs inside; `make demo` and `make test` where not given
#
# The root reaches package mirrors the way this machine does: its apt, pip and certificate settings
# are copied in. MIRROR names the mirror for debootstrap where the suite's own default will not do;
# noble has none on Debian, and wants Ubuntu's keys in KEYRING (of the package ubuntu-keyring).
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -lt 1 ] || [ -e "$1" ]; then
  sed -n '3,17s/^# \{0,1\}//p' "$0"
  exit 2
fi
root=$(realpath -m "$1")
suite=${2:-bookworm}
shift $(($# < 2 ? $# : 2))

say() { printf 'bare root: %s\n' "$*"; }

# git and make are all that is there beyond the distribution's minimum.
say "debootstrap $suite"
options=() origin=(${MIRROR:+"$MIRROR"})
if [ "$suite" = noble ]; then
  # Ubuntu keeps oneDNN and CLI11 in `universe`.
  options=(--keyring="${KEYRING:-/usr/share/keyrings/ubuntu-archive-keyring.gpg}"
           --components=main,universe)
  # The script by which debootstrap makes any Ubuntu, where it does not know this one's name.
  origin=("${MIRROR:?names the Ubuntu mirror to use}" gutsy)
fi
debootstrap --variant=minbase --include=git,make,ca-certificates "${options[@]}" \
  "$suite" "$root" "${origin[@]}" > "$root.log" 2>&1 || { tail -n 20 "$root.log"; exit 1; }

# The machine's own way to its mirrors, where it has one.
pass() {
  if [ -e "$1" ]; then
    mkdir -p "$root/$(dirname "$1")"
    cp -rL --remove-destination "$1" "$root/$(dirname "$1")/"
  fi
}
for setting in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt \
               /etc/apt/apt.conf.d /etc/apt/auth.conf.d; do
  pass "$setting"
done
if [ "$suite" = "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" ]; then
  pass /etc/apt/sources.list.d
  rm -f "$root/etc/apt/sources.list"
  pass /etc/apt/sources.list
fi

umount_all() { umount "$root/proc" "$root/dev/pts" "$root/dev" 2> /dev/null || true; }
trap umount_all EXIT
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount --bind /dev/pts "$root/dev/pts"

git bundle create "$root/root/convoy.bundle" HEAD > /dev/null 2>&1
environment=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C)
while IFS= read -r line; do environment+=("$line"); done < <(env | grep -iE '^(pip_|[a-z]+_proxy=|ssl_cert|requests_ca)' || true)
inside() { chroot "$root" env -i "${environment[@]}" ${CONVOY_CUDA:+CONVOY_CUDA="$CONVOY_CUDA"} "$@"; }

inside git clone -q /root/convoy.bundle /root/convoy
say "$(inside sh -c '. /etc/os-release; echo "$PRETTY_NAME"'), $(inside sh -c 'dpkg -l | grep -c ^ii') packages, HEAD $(git rev-parse --short HEAD)"
for tool in g++ cmake python3 nvcc; do
  if inside sh -c "command -v $tool" > /dev/null; then say "$tool is there already"; fi
done

run() {
  local begin=$SECONDS
  say "\$ $*"
  inside sh -c 'cd /root/convoy && exec "$@"' sh "$@"
  say "\$ $*: passed in $((SECONDS - begin)) s"
}
if [ $# -gt 0 ]; then
  run "$@"
else
  run make demo
  run make test
fi
