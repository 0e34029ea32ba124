#!/usr/bin/env bash
# Installs the Debian packages that the tests and the demo use, or reports which are missing.
set -euo pipefail

# command:package, what for
needed=(
  "ip:iproute2"          # namespaces, links, addresses
  "ping:iputils-ping"    # echo requests through the router
  "tracepath:iputils-tracepath" # finds the path MTU as a host does
  "traceroute:traceroute" # finds the hops as a host does
  "tcpdump:tcpdump"      # a capture beside the router
  "tshark:tshark"        # reads the written captures independently
  "cc:gcc"               # links the Rust program
  "clang:clang"          # compiles the BPF programs
  "nft:nftables"         # reads rulesets in nft's text
  "iptables-legacy-restore:iptables" # loads rules to compare the kernel with Tollway
  "ipset:ipset"          # sets that rules of iptables look up
  "unshare:util-linux"   # the scratch namespaces for nft
  "/usr/lib/frr/bgpd:frr" # the routing daemons whose routes Tollway follows
  "wg:wireguard-tools"    # keys of a tunnel in the virtual machine
  "conntrack:conntrack"   # makes, lists and deletes connections of the kernel
  "curl:curl"            # fetches files by FTP and TFTP through the router
  "vsftpd:vsftpd"        # the server of FTP
  "in.tftpd:tftpd-hpa"   # the server of TFTP
  "fail2ban-server:fail2ban" # bans addresses by sets of nftables
  "ethtool:ethtool"      # switches off offloads that virtual interfaces only pretend to have
  "qemu-system-x86_64:qemu-system-x86" # the virtual machine with VLAN and VRF devices
  "cpio:cpio"            # packs its initramfs
  "xz:xz-utils"          # unpacks its kernel
  "zstd:zstd"            # unpacks newer kernels
  "modprobe:kmod"        # lists the modules it needs
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
# Fetches the parts of the virtual machine with network cards; installs nothing.
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
  # Packages must not start their services here.
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
