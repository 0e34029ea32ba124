#!/usr/bin/env bash
# Every test; one that fails beside others is run once more, alone, and has to pass then.
#
# Many tests measure time, or talk through namespaces, on machines whose processors are away for a second
# when their host is busy. What passed only alone is told at the end, so that somebody looks at it; more
# than a few are a failure at once, and so is a program that died.
set -uo pipefail
cd "$(dirname "$0")/.."
MOST=3
log=$(mktemp)
trap 'rm -f "$log"' EXIT

cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log" && exit 0

# A line for each failed test: how cargo calls its program, a tab, its name; no name if the program died.
failed=$(awk '
  /^ +(Running|Doc-tests) / { names = "" }
  /^test [A-Za-z0-9_:]+ \.\.\. FAILED$/ { names = names " " $2 }
  /^error: (doc)?test failed, to rerun pass `/ {
    split($0, quoted, "`"); count = split(names, name, " ")
    if (count == 0) print quoted[2] "\t"
    for (i = 1; i <= count; i++) print quoted[2] "\t" name[i]
  }' "$log")
count=$(grep -c . <<<"$failed")
if [ "$count" -eq 0 ] || [ "$count" -gt "$MOST" ]; then
  exit 101
fi

while IFS=$'\t' read -r target name; do
  if [ -z "$name" ]; then
    echo "$target died" >&2
    exit 101
  fi
  # The target is several words, such as "-p tollway --test live".
  # shellcheck disable=SC2086
  cargo test --locked $target -- --exact "$name" </dev/null 2>&1 | tee "$log" || exit 101
  # One of another name is no proof.
  grep -Fqx "test $name ... ok" "$log" || exit 101
done <<<"$failed"

echo "Passed alone, but failed beside others; look at why:" >&2
sed 's/^/  /' <<<"$failed" >&2
