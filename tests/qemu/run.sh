#!/usr/bin/env bash
# Runs a command in a virtual machine with Debian's kernel and this machine's files, read-only.
#
#   tests/qemu/run.sh COMMAND [ARGUMENT...]
#
# Exits as the command does, whose output comes on standard output; with 125 where there was no machine.
# There are VRF and VLAN devices, which not every kernel has; no KVM is needed, and it is slow. In it,
# /tmp and /run are empty; what it writes below $TOLLWAY_OUT (there /mnt) stays in target/qemu/out here.
#
# TOLLWAY_QEMU_SECONDS: how long it may run (default 900).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
image=$(ls -v /boot/vmlinuz-*-amd64 2>/dev/null | tail -1)
[ -n "$image" ] || { echo "qemu: no kernel in /boot: apt-get install linux-image-amd64" >&2; exit 125; }
version=${image#/boot/vmlinuz-}
modules=/lib/modules/$version

# Extracting the kernel and packing the first files takes seconds, so it is done once for each kernel.
ready=$target/qemu/$version
prepare() {
  local work at module
  work=$(mktemp -d "$target/qemu/work.XXXXXX")
  # A PVH start takes the bare kernel: the boot image would unpack itself, slowly.
  at=$(LC_ALL=C grep -abom1 $'\xfd7zXZ\x00' "$image" | cut -d: -f1)
  { tail -c "+$((at + 1))" "$image" | xz -dc > "$work/vmlinux"; } 2>/dev/null || true
  [ -s "$work/vmlinux" ] || { echo "qemu: no kernel found in $image" >&2; exit 125; }
  mkdir -p "$work/files/modules"
  cc -static -O2 -o "$work/files/init" "$here/init.c"
  for module in virtio_pci 9pnet_virtio 9p; do
    modprobe -S "$version" --show-depends "$module" | awk '$1 == "insmod" { print $2 }'
  done | awk '!seen[$0]++' | while read -r path; do
    cp "$path" "$work/files/modules/"
    echo "/modules/$(basename "$path")"
  done > "$work/files/modules/list"
  (cd "$work/files" && find . | cpio -o -H newc --quiet) > "$work/initrd"
  rm -rf "$ready" && mv "$work" "$ready"
}
mkdir -p "$target/qemu"
[ "$ready/initrd" -nt "$here/init.c" ] && [ "$ready/initrd" -nt "$here/run.sh" ] || prepare

# One at a time has it.
out=$target/qemu/out
mkdir -p "$out"
exec 9> "$target/qemu/lock"
flock 9
rm -f "$out/status"
{
  echo "modprobe -qa tun veth"
  echo "export TOLLWAY_OUT=/mnt"
  env | grep -E '^(TOLLWAY_ORACLE|CI=|RUST_)' | while IFS='=' read -r name value; do
    printf 'export %s=%q\n' "$name" "$value"
  done
  printf 'cd %q && exec' "$PWD"
  printf ' %q' "$@"
  echo
} > "$out/command"

share() { echo "-fsdev local,id=$1,path=$2,security_model=none,multidevs=remap${3:-}"; }
# shellcheck disable=SC2046
timeout "${TOLLWAY_QEMU_SECONDS:-900}" qemu-system-x86_64 \
  -machine q35,accel=tcg -cpu max -smp 1 -m 1536 -nodefaults -no-reboot -display none -serial stdio \
  -kernel "$ready/vmlinux" -initrd "$ready/initrd" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off" \
  $(share root / ,readonly=on) -device virtio-9p-pci,fsdev=root,mount_tag=root \
  $(share out "$out") -device virtio-9p-pci,fsdev=out,mount_tag=out \
  < /dev/null | tr -d '\r' || true
[ -s "$out/status" ] || { echo "qemu: the command did not end" >&2; exit 125; }
status=$(cat "$out/status")
exit "$status"
