#!/usr/bin/env bash
# Runs each fuzz target for SECONDS with cargo-fuzz and a nightly toolchain. Without these, runs the tests
# that drive the same code with simpler changes.
# usage: fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-600}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: '$seconds' is no number of seconds; write e.g. FUZZ_SECONDS=600" >&2; exit 2; }
tools=$PWD/target/tools

stable() { # WHY
  echo "fuzz: $1; going on with the stable toolchain, where no coverage leads the way" >&2
  export TOLLWAY_FUZZ_SECONDS=$seconds
  cargo test --locked -p tollway-dataplane --test fuzz_path -- --nocapture no_input
  cargo test --locked -p tollway --test fuzz_config -- --nocapture no_text
  cargo test --locked -p tollway --test fuzz_rules -- --nocapture no_text
  cargo test --locked -p tollway-firewall --lib -- --nocapture no_packet_fares
  exit
}

cargo +nightly --version >/dev/null 2>&1 ||
  stable "there is no nightly toolchain ('rustup toolchain install nightly' installs it)"
[ -x "$tools/bin/cargo-fuzz" ] ||
  cargo install --quiet --root "$tools" --locked cargo-fuzz ||
  stable "cargo-fuzz cannot be installed"
export PATH=$tools/bin:$PATH

for target in path config rules_nft rules_iptables rules_ipfw; do
  corpus=fuzz/corpus/$target
  mkdir -p "$corpus"
  case $target in
    config) cp examples/*.toml "$corpus" ;;
    rules_iptables) cp crates/firewall/src/iptables/tests/saves/*.save "$corpus" ;;
    rules_ipfw) cp crates/firewall/src/ipfw/tests/corpus/* "$corpus" ;;
  esac
  seeds=()
  [ -d "fuzz/seeds/$target" ] && seeds=("fuzz/seeds/$target")
  echo "fuzz: $target for $seconds s"
  # Findings land in fuzz/artifacts, and the command fails.
  cargo +nightly fuzz run "$target" "$corpus" "${seeds[@]}" -- \
    -max_total_time="$seconds" -max_len=4096 -timeout=20 -print_final_stats=1
done
