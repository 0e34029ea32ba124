#!/usr/bin/env bash
# Runs a command in a virtual machine with Debian's kernel and this machine's files, read-only.
#
#   tests/qemu/run.sh COMMAND [ARGUMENT...]
#
# Prints the command's output and exits with its status, or with 125 if the machine could not run it.
# The machine has VRF and VLAN devices, which not every kernel has. It needs no KVM, so it is slow. Its /tmp
# and /run are empty. What it writes below $TOLLWAY_OUT (its /mnt) stays in target/qemu/out1 on this machine, or in
# out2 if another one runs beside it, and so on.
#
# TOLLWAY_QEMU_SECONDS: the time limit in seconds (default 1800).
# TOLLWAY_QEMU_SUITE:   the Debian suite of the kernel (default: the kernel in /boot).
# TOLLWAY_QEMU_CARDS:   network cards by model (igb, virtio-net-pci, e1000e, vmxnet3), in pairs: each pair is
#                       the two ends of a cable. The cards of cable N have the addresses 02:00:00:00:00:0A
#                       (0B, and so on) and 02:00:00:00:0N:02. Cables of virtio-net-pci accept unfinished
#                       checksums and large packets, as a host's bridge does; they require root.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
mkdir -p "$target/qemu"
target=$(cd "$target" && pwd)
cards=(${TOLLWAY_QEMU_CARDS:-})

# The kernel: its image, and the root directory of its modules.
root=
if [ -n "${TOLLWAY_QEMU_SUITE:-}" ]; then
  root=$("$here/fetch.sh" kernel "$TOLLWAY_QEMU_SUITE") || exit 125
  image=$(ls "$root"/boot/vmlinuz-* "$root"/lib/modules/*/vmlinuz 2>/dev/null | head -1) || true
  version=$(basename "$(ls -d "$root"/lib/modules/* | head -1)")
else
  image=$(ls -v /boot/vmlinuz-*-amd64 2>/dev/null | tail -1)
  version=${image#/boot/vmlinuz-}
fi
[ -n "$image" ] || { echo "qemu: no kernel in /boot: apt-get install linux-image-amd64" >&2; exit 125; }

# The emulator; some cards require a newer one.
qemu=qemu-system-x86_64
firmware=()
case " ${cards[*]} " in *" igb "*)
  emulator=$("$here/fetch.sh" emulator) || exit 125
  if [ "$emulator" != / ]; then
    qemu=$emulator/usr/bin/qemu-system-x86_64
    export QEMU_MODULE_DIR=$emulator/usr/lib/x86_64-linux-gnu/qemu
    firmware=(-L "$emulator/usr/share/qemu" -L "$emulator/usr/share/seabios")
  fi
esac

# Extracts the bare kernel, which a PVH start accepts: the image itself would unpack slowly.
bare() {
  local magic=$1 unpack=$2 at
  at=$(LC_ALL=C grep -abom1 "$magic" "$image" | head -1 | cut -d: -f1) || true
  # Other bytes follow the kernel in the image, and the unpacker reports an error at them.
  [ -z "$at" ] || { tail -c "+$((at + 1))" "$image" | $unpack; } 2>/dev/null || true
}

# Extracting the kernel and packing the first files takes seconds, so it is done once for each kernel.
ready=$target/qemu/$version
prepare() {
  local work module path
  work=$(mktemp -d "$target/qemu/work.XXXXXX")
  bare $'\xfd7zXZ\x00' "xz -dc" > "$work/vmlinux"
  [ -s "$work/vmlinux" ] || bare $'\x28\xb5\x2f\xfd' "zstd -dc" > "$work/vmlinux"
  [ -s "$work/vmlinux" ] || { echo "qemu: no kernel found in $image" >&2; exit 125; }
  mkdir -p "$work/files/modules"
  cc -static -O2 -o "$work/files/init" "$here/init.c"
  for module in virtio_pci 9pnet_virtio 9p; do
    modprobe ${root:+-d "$root"} -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
  done | awk '!seen[$0]++' | while read -r path; do
    cp "$path" "$work/files/modules/"
    path=$work/files/modules/$(basename "$path")
    case $path in *.xz) xz -d "$path" ;; esac
    echo "/modules/$(basename "${path%.xz}")"
  done > "$work/files/modules/list"
  (cd "$work/files" && find . | cpio -o -H newc --quiet) > "$work/initrd"
  rm -rf "$ready" && mv "$work" "$ready"
}
# One script at a time prepares a machine.
exec 8> "$target/qemu/lock"
flock 8
[ "$ready/initrd" -nt "$here/init.c" ] && [ "$ready/initrd" -nt "$here/run.sh" ] || prepare
exec 8>&-
# As many machines run as there are processors. The lock of a place ends with this script.
place=
until [ -n "$place" ]; do
  for number in $(seq "$(nproc)"); do
    exec 9> "$target/qemu/lock$number"
    if flock -n 9; then
      place=$number
      break
    fi
  done
  [ -n "$place" ] || sleep 1
done

# /tmp and /run are empty in the machine. If this tree is in one of them, the machine mounts it there again.
tree=$(cd "$here/../.." && pwd)
case $tree/ in /tmp/* | /run/*) is_covered=1 ;; *) is_covered= ;; esac

out=$target/qemu/out$place
mkdir -p "$out"
rm -f "$out/status"
{
  if [ -n "$root" ]; then
    echo "mount -t tmpfs modules /lib/modules && ln -s '$root/lib/modules/$version' /lib/modules/"
  fi
  if [ -n "$is_covered" ]; then
    printf 'mkdir -p %q && mount -t 9p -o trans=virtio,version=9p2000.L,ro tree %q\n' "$tree" "$tree"
  fi
  echo "modprobe -qa tun veth ${cards[*]/virtio-net-pci/virtio_net}"
  echo "export TOLLWAY_OUT=/mnt"
  env | grep -E '^(TOLLWAY_ORACLE|TOLLWAY_CARDS|CI=|RUST_)' | while IFS='=' read -r name value; do
    printf 'export %s=%q\n' "$name" "$value"
  done
  printf 'cd %q && exec' "$PWD"
  printf ' %q' "$@"
  echo
} > "$out/command"

# Each cable connects two cards. It is a hub with two ports, or a bridge with two TAP devices for cards that
# can make use of one.
devices=() bridged=()
for index in "${!cards[@]}"; do
  cable=$((index / 2 + 1)) more=
  [ $((index % 2)) = 0 ] && mac=$(printf '00:%02x' $((9 + cable))) || mac=$(printf '%02x:02' "$cable")
  netdev=hubport,id=end$index,hubid=$cable
  if [ "${cards[index]}" = virtio-net-pci ]; then
    # The driver supports zero-copy only if it maps memory itself (iommu_platform).
    more=,mq=on,vectors=6,disable-legacy=on,iommu_platform=on
    netdev=tap,id=end$index,ifname=end$index,script=no,downscript=no,vhost=off,queues=2
    bridged+=("end$index:cable$cable")
  fi
  # Each card has its own slot, because igb uses the adjacent numbers for its functions.
  devices+=(-netdev "$netdev" -device "pcie-root-port,id=slot$index,chassis=$((index + 1))"
    -device "${cards[index]},bus=slot$index,netdev=end$index,romfile=,mac=02:00:00:00:$mac$more")
done

# Creates the bridges, in a network namespace that only the emulator uses.
bridges() {
  local pair
  for pair in "${bridged[@]}"; do
    ip link show "${pair#*:}" &> /dev/null || ip link add "${pair#*:}" up type bridge mcast_snooping 0
    ip tuntap add "${pair%:*}" mode tap multi_queue
    ip link set "${pair%:*}" master "${pair#*:}" up
  done
}
between=()
if [ ${#bridged[@]} -gt 0 ]; then
  # shellcheck disable=SC2016
  between=(unshare -n bash -c "$(declare -p bridged; declare -f bridges)"'
    sysctl -qw net.ipv6.conf.default.disable_ipv6=1 && bridges && exec "$@"' bridges)
fi

# shellcheck disable=SC2046,SC2207
share() { echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap${3:-}"; }
shares=($(share root / ,readonly=on) -device virtio-9p-pci,fsdev=root,mount_tag=root
  $(share out "$out") -device virtio-9p-pci,fsdev=out,mount_tag=out)
[ -z "$is_covered" ] ||
  shares+=($(share tree "$tree" ,readonly=on) -device virtio-9p-pci,fsdev=tree,mount_tag=tree)
# On a busy host the kernel's timer is so late that the kernel would reject it: no_timer_check.
"${between[@]}" timeout "${TOLLWAY_QEMU_SECONDS:-1800}" "$qemu" "${firmware[@]}" \
  -machine q35,accel=tcg -cpu max -smp 1 -m 1536 -nodefaults -no-reboot -display none -serial stdio \
  -kernel "$ready/vmlinux" -initrd "$ready/initrd" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check" \
  "${shares[@]}" "${devices[@]}" \
  < /dev/null | sed -u 's/\r//g' || true
[ -s "$out/status" ] || { echo "qemu: the command did not end" >&2; exit 125; }
status=$(cat "$out/status")
exit "$status"
