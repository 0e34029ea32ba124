#!/usr/bin/env bash
# Installs the Debian packages that the tests and the demo use, or says which are missing.
set -euo pipefail

# command:package, what for
needed=(
  "ip:iproute2"          # namespaces, links, addresses
  "ping:iputils-ping"    # echo requests through the router
  "tracepath:iputils-tracepath" # the path MTU as a host finds it
  "traceroute:traceroute" # the hops as a host finds them
  "tshark:tshark"        # an independent reader of the captures that are written
  "cc:gcc"               # links the Rust program
  "clang:clang"          # compiles the BPF programs
  "nft:nftables"         # reads rulesets in nft's text
  "iptables-legacy-restore:iptables" # loads the rules that the kernel and Tollway are held against
  "unshare:util-linux"   # the scratch namespaces that it reads them in
  "ethtool:ethtool"      # switches off what virtual interfaces only pretend to do
)
# file:package, of packages without a command
headers=(
  "/usr/include/bpf/bpf_helpers.h:libbpf-dev"
  "/usr/include/linux/bpf.h:linux-libc-dev"
)

missing=()
for entry in "${needed[@]}"; do
  command -v "${entry%%:*}" >/dev/null 2>&1 || missing+=("${entry##*:}")
done
for entry in "${headers[@]}"; do
  [ -e "${entry%%:*}" ] || missing+=("${entry##*:}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
else
  echo "setup: these packages are missing and only root can install them: ${missing[*]}" >&2
  echo "setup: run 'apt-get install ${missing[*]}' as root; going on with what is here" >&2
fi
