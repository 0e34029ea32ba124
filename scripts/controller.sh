#!/usr/bin/env bash
# Takes over a Linux router between two hosts, with the kernel's own configuration. Run it in a network and a
# mount namespace of its own.
# usage: controller.sh TOLLWAY
set -euo pipefail
tollway=$1

for program in ip ping nsenter; do
  command -v "$program" >/dev/null 2>&1 || { echo "$program is not installed; this part is left out"; exit 0; }
done
mount -t tmpfs none /run
mount -t sysfs none /sys
mount -t bpf -o mode=0700 none /sys/fs/bpf

pids=()
cleanup() { for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait 2>/dev/null || true; }
trap cleanup EXIT

in_host() { local pid=$1; shift; nsenter --target "$pid" --net "$@"; }
host() { # DEVICE ADDRESS GATEWAY
  unshare --net sleep 60 & local pid=$!
  pids+=("$pid")
  # The namespace exists once it differs from this one.
  for _ in $(seq 100); do
    [ "$(readlink "/proc/$pid/ns/net")" != "$(readlink /proc/self/ns/net)" ] && break
    sleep 0.01
  done
  ip link add "$1" type veth peer name eth0 netns "$pid"
  ip address add "$3/25" dev "$1"
  ip link set "$1" up
  in_host "$pid" ip address add "$2/25" dev eth0
  in_host "$pid" ip link set eth0 up
  in_host "$pid" ip route add default via "$3"
}
show() { echo; echo "\$ $*"; "$@"; }
tollway() { "$tollway" "$@"; }

host eth0 192.0.2.10 192.0.2.1
host eth1 192.0.2.140 192.0.2.129
echo 1 > /proc/sys/net/ipv4/ip_forward
echo "The kernel routes between eth0 (192.0.2.1/25) and eth1 (192.0.2.129/25)."

show tollway check eth0 eth1
echo
echo "\$ tollway run eth0 eth1 &"
"$tollway" run eth0 eth1 & router=$!
pids+=("$router")
for _ in $(seq 100); do
  tollway sync >/dev/null 2>&1 && break
  sleep 0.1
done
kill -0 "$router" || { echo "tollway did not start"; exit 1; }
echo
echo "\$ ping 192.0.2.140        (from host to host)"
in_host "${pids[0]}" ping -q -c 50 -i 0.01 192.0.2.140 | sed -n '/transmitted/p'
show tollway show offload

echo
echo "\$ ip route add blackhole 203.0.113.0/24; tollway sync"
ip route add blackhole 203.0.113.0/24
tollway sync
show tollway show routes get 203.0.113.1

echo
echo "Tollway stops; the kernel goes on:"
kill -TERM "$router"
wait "$router"
in_host "${pids[0]}" ping -q -c 5 -i 0.01 192.0.2.140 | sed -n '/transmitted/p'
