#!/usr/bin/env bash
# Pings from host A to host B through Tollway, each in a network namespace. Run it in a namespace of its own.
# usage: live.sh TOLLWAY CONFIG
set -euo pipefail
tollway=$1
config=$2

for program in ip ping nsenter; do
  command -v "$program" >/dev/null 2>&1 || { echo "$program is not installed; this part is left out"; exit 0; }
done

pids=()
dir=$(mktemp -d)
cleanup() { rm -rf "$dir"; for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait 2>/dev/null || true; }
trap cleanup EXIT

# Tollway forwards and answers here, so the router's kernel must not.
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6

host() { # NAME PORT ADDRESS4 GATEWAY4 ADDRESS6 GATEWAY6
  unshare --net sleep 60 & local pid=$!
  pids+=("$pid")
  # The namespace exists once it differs from this one.
  for _ in $(seq 100); do
    [ "$(readlink "/proc/$pid/ns/net")" != "$(readlink /proc/self/ns/net)" ] && break
    sleep 0.01
  done
  ip link add "$2" type veth peer name eth0 netns "$pid"
  ip link set "$2" up
  in_host "$pid" ip link set lo up
  in_host "$pid" ip address add "$3" dev eth0
  in_host "$pid" ip address add "$5" dev eth0 nodad
  in_host "$pid" ip link set eth0 up
  in_host "$pid" ip route add default via "$4"
  in_host "$pid" ip route add default via "$6"
  echo "host $1: $3 and $5, behind port $2"
}
in_host() { local pid=$1; shift; nsenter --target "$pid" --net "$@"; }

host A left 192.0.2.2/25 192.0.2.1 2001:db8:1::2/64 2001:db8:1::1
host B right 192.0.2.130/25 192.0.2.129 2001:db8:2::2/64 2001:db8:2::1

socket=$dir/control.sock
"$tollway" run --config "$config" --socket "$socket" & router=$!
pids+=("$router")
sleep 0.5
kill -0 "$router" || { echo "tollway did not start"; exit 1; }

for address in 192.0.2.130 2001:db8:2::2; do
  echo
  echo "\$ ping $address        (from A to B, through Tollway)"
  in_host "${pids[0]}" ping -c 4 -i 0.2 -W 2 "$address"
done

echo
echo "\$ tollway show ports   (while it runs)"
"$tollway" show ports --socket "$socket"

echo
echo "Tollway stops:"
kill -TERM "$router"
wait "$router"
