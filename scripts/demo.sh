#!/usr/bin/env bash
# Shows the main functions: a capture through a router, live hosts, a takeover from a Linux router, the
# kernel beside Tollway, then what each feature costs.
set -euo pipefail
cd "$(dirname "$0")/.."

tollway=target/release/tollway
out=out/demo
capture=../shared/data/replay.pcap
[ -r "$capture" ] || { capture=examples/office.pcap; echo "(no ../shared/data: the project's own capture)"; }

bold='' plain=''
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] && { bold=$'\033[1m'; plain=$'\033[0m'; }
say() { printf '\n%s== %s%s\n\n' "$bold" "$*" "$plain"; }

say "1. A capture through a router with three ports, two VRFs and a VLAN"
echo "\$ tollway check examples/office.toml"
$tollway check examples/office.toml
echo "\$ tollway replay --config examples/office.toml --in lan=$capture ... --out $out"
rm -rf "$out"
$tollway replay --config examples/office.toml \
  --in "lan=$capture" --in "wan=$capture" --in "lab=$capture" --out "$out"
if command -v tshark >/dev/null 2>&1; then
  echo
  echo "what left by wan, as tshark reads $out/wan.pcap:"
  tshark -r "$out/wan.pcap" -Y "not vlan" 2>/dev/null | cut -c1-100 | sed -n 1,3p
  echo "and under VLAN 100, from the VRF red:"
  tshark -r "$out/wan.pcap" -Y "vlan.id == 100" 2>/dev/null | cut -c1-100 | sed -n 1,3p
else
  echo "tshark is not installed: the captures in $out are there, unread"
fi

say "2. Two hosts, and Tollway between them on real interfaces"
if unshare --user --map-root-user --net --mount true 2>/dev/null; then
  unshare --user --map-root-user --net --mount scripts/live.sh "$tollway" examples/live.toml
elif [ "$(id -u)" -eq 0 ] && unshare --net --mount true 2>/dev/null; then
  unshare --net --mount scripts/live.sh "$tollway" examples/live.toml
else
  echo "This machine lets nobody but root make network namespaces (see kernel.unprivileged_userns_clone"
  echo "and user.max_net_namespaces); this part is left out."
fi

say "3. A Linux router as it is, and Tollway in the kernel's place"
if [ "$(id -u)" -eq 0 ] && unshare --net --mount true 2>/dev/null; then
  unshare --net --mount scripts/controller.sh "$tollway"
else
  echo "Only root may load programs into the kernel: run 'sudo make demo' for this part."
fi

say "4. Kernel, AF_XDP, XDP path in one run; then Tollway is killed and stopped under traffic and pings"
if [ "$(id -u)" -eq 0 ]; then
  echo "\$ tollway lab live --only af-xdp xdp-256 kill stop --pairs 3 --repeat 1"
  $tollway lab live --only af-xdp xdp-256 kill stop --pairs 3 --repeat 1
else
  echo "Only root may load programs into the kernel: run 'sudo make demo' for this part; what part 2 has shown,"
  echo "packet sockets, is what every user can have."
fi

say "5. The tolls: what each feature costs a packet on this machine"
$tollway lab tolls
