#!/usr/bin/env bash
# Fetches the packages for a virtual machine with other kernels and network cards; installs nothing.
#
#   tests/qemu/fetch.sh emulator            QEMU 8 or newer, which has igb: prints its directory
#   tests/qemu/fetch.sh kernel SUITE        the kernel of a Debian suite: prints its directory
#
# The packages come from other suites of the archive that this machine uses. The script unpacks them below
# target/qemu and does not fetch them again. To get newer ones, remove them there.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
base=${CARGO_TARGET_DIR:-$here/../../target}/qemu/packages
mkdir -p "$base"
base=$(cd "$base" && pwd)

fail() { echo "fetch: $*" >&2; exit 1; }

# Runs a command up to three times, half a minute apart, since a name server or archive may not answer at once.
again() {
  "$@" || { sleep 30; "$@"; } || { sleep 30; "$@"; }
}

# Only one process at a time fetches packages.
exec 9> "$base/lock"
flock 9

# Fetches the package lists of a suite from this machine's archive.
apt_of() {
  local suite=$1 at=$base/apt/$1
  apt=(-qq -o "Dir::Etc::sourcelist=$at/list" -o "Dir::Etc::sourceparts=/dev/null"
    -o "Dir::State::lists=$at/lists" -o "Dir::Cache=$at/cache" -o "APT::Sandbox::User=root"
    # Ignore the installed packages: they may be newer than the suite's, and no longer available.
    -o "Dir::State::status=/dev/null")
  [ ! -e "$at/done" ] || return 0
  mkdir -p "$at/lists/partial" "$at/cache/archives/partial"
  local own
  # Only Debian's main archive has backports, not its security archive or another vendor's.
  own=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep '/debian/*$' | sort -u | head -1) || true
  [ -n "$own" ] || fail "this machine's packages come from no archive of Debian's"
  local key=/usr/share/keyrings/debian-archive-keyring.gpg
  echo "deb [signed-by=$key] $own $suite main" > "$at/list"
  again apt-get "${apt[@]}" -o APT::Update::Error-Mode=any update >&2 || fail "$suite cannot be had from this machine's archive"
  touch "$at/done"
}

# Unpacks packages into a directory, which exists completely or not at all.
unpack() {
  local into=$1 work package
  shift
  work=$(mktemp -d "$base/work.XXXXXX")
  (cd "$work" && again apt-get "${apt[@]}" download "$@" >&2) || fail "could not fetch $*"
  mkdir "$work/files"
  for package in "$work"/*.deb; do
    dpkg-deb -x "$package" "$work/files"
    rm "$package"
  done
  rm -rf "$into"
  mv "$work/files" "$into"
  rmdir "$work"
}

emulator() {
  local codename
  # The installed emulator may suffice.
  if qemu-system-x86_64 -device help 2>/dev/null | grep -q '"igb"'; then
    echo /
    return
  fi
  if [ ! -d "$base/emulator" ]; then
    codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
    apt_of "$codename-backports"
    unpack "$base/emulator" qemu-system-x86 qemu-system-data qemu-system-common seabios
  fi
  echo "$base/emulator"
}

kernel() {
  local suite=$1 image version names name
  if [ ! -d "$base/$suite" ]; then
    apt_of "$suite"
    image=$(apt-cache "${apt[@]}" depends linux-image-amd64 | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
    [ -n "$image" ] || fail "$suite has no linux-image-amd64"
    version=${image#linux-image-}
    names=("$image")
    for name in "linux-base-$version" "linux-modules-$version" "linux-binary-$version"; do
      [ -z "$(apt-cache "${apt[@]}" search --names-only "^${name//+/\\+}\$")" ] || names+=("$name")
    done
    unpack "$base/$suite.new" "${names[@]}"
    # Make the modules accessible at their former place, too.
    [ -e "$base/$suite.new/lib" ] || ln -s usr/lib "$base/$suite.new/lib"
    depmod -b "$base/$suite.new" "$version"
    mv "$base/$suite.new" "$base/$suite"
  fi
  echo "$base/$suite"
}

case ${1:-} in
  emulator) emulator ;;
  kernel) kernel "${2:?a suite}" ;;
  *) fail "emulator or kernel?" ;;
esac
