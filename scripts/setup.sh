#!/usr/bin/env bash
# Installs the Debian packages that the tests and the demo use, or says which are missing.
set -euo pipefail

# command:package, what for
needed=(
  "ip:iproute2"          # namespaces, links, addresses
  "ping:iputils-ping"    # echo requests through the router
  "tracepath:iputils-tracepath" # the path MTU as a host finds it
  "traceroute:traceroute" # the hops as a host finds them
  "tcpdump:tcpdump"      # somebody who captures
  "tshark:tshark"        # an independent reader of the captures that are written
  "cc:gcc"               # links the Rust program
  "clang:clang"          # compiles the BPF programs
  "nft:nftables"         # reads rulesets in nft's text
  "iptables-legacy-restore:iptables" # loads the rules that the kernel and Tollway are held against
  "unshare:util-linux"   # the scratch namespaces that it reads them in
  "/usr/lib/frr/bgpd:frr" # the routing daemons whose routes are mirrored
  "ethtool:ethtool"      # switches off what virtual interfaces only pretend to do
  "qemu-system-x86_64:qemu-system-x86" # the virtual machine with VLAN and VRF devices
  "cpio:cpio"            # packs its first files
  "xz:xz-utils"          # unpacks its kernel
  "zstd:zstd"            # unpacks a newer one
  "modprobe:kmod"        # says which modules it needs
)
# file:package, of packages without a command
headers=(
  "/usr/include/bpf/bpf_helpers.h:libbpf-dev"
  "/usr/include/linux/bpf.h:linux-libc-dev"
)

missing=()
compgen -G "/boot/vmlinuz-*-amd64" >/dev/null || [ "$(uname -m)" != x86_64 ] || missing+=(linux-image-amd64) # its kernel
for entry in "${needed[@]}"; do
  command -v "${entry%%:*}" >/dev/null 2>&1 || missing+=("${entry##*:}")
done
for entry in "${headers[@]}"; do
  [ -e "${entry%%:*}" ] || missing+=("${entry##*:}")
done
# What the virtual machine with network cards is made of, which is installed nowhere.
fetch() {
  [ "$(uname -m)" = x86_64 ] && command -v apt-get >/dev/null 2>&1 || return 0
  local here
  here=$(dirname "$0")
  "$here/../tests/qemu/fetch.sh" emulator >/dev/null && "$here/../tests/qemu/fetch.sh" kernel trixie-backports >/dev/null ||
    echo "setup: going on without a virtual machine for network cards" >&2
}

if [ ${#missing[@]} -eq 0 ]; then
  fetch
  exit 0
fi

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # A package that brings a service is not to start it here.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "setup: these packages are missing and only root can install them: ${missing[*]}" >&2
  echo "setup: run 'apt-get install ${missing[*]}' as root; going on with what is here" >&2
fi
fetch
