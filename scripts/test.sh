#!/usr/bin/env bash
# Every test; one that fails beside others is run once more, alone, and has to pass then.
#
# Many tests measure time, or talk through namespaces, on machines whose processors are away for a second
# when their host is busy. What passed only alone is told at the end, so that somebody looks at it; more
# than a few are a failure at once, and so is a program that died, or anything that is not understood here.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
MOST=3
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log"
results=("${PIPESTATUS[@]}")
[ "${results[*]}" = "0 0" ] && exit 0
# 101 is how cargo says that tests failed.
[ "${results[*]}" = "101 0" ] || exit 1

# A line for each failed test: how cargo calls its program, a tab, its name. A program's names must be as many
# as it says have failed, and the programs as many as cargo says. What a program printed of another's tests,
# which ran in a virtual machine, ends with a result of its own, and is not counted.
failed=$(awk '
  /^ +(Running|Doc-tests) / { count = 0; told = 0 }
  /^test [A-Za-z0-9_:]+ \.\.\. FAILED$/ { name[++count] = $2 }
  /^test result: FAILED\. / {
    told = $6
    if (told == 0 || told > count) exit failure = 1
    count -= told
    for (i = 1; i <= told; i++) of[i] = name[count + i]
  }
  /^error: (doc)?test failed, to rerun pass `/ {
    split($0, quoted, "`"); programs++
    if (count != 0 || told == 0) exit failure = 1
    for (i = 1; i <= told; i++) print quoted[2] "\t" of[i]
  }
  /^error: [0-9]+ targets? failed:$/ { all = $2 }
  END { exit failure || programs == 0 || programs != all }' "$log") || exit 1
[ "$(wc -l <<<"$failed")" -le "$MOST" ] || exit 1

while IFS=$'\t' read -r target name; do
  # The target is several words, such as "-p tollway --test live".
  # shellcheck disable=SC2086
  cargo test --locked $target -- --exact "$name" </dev/null 2>&1 | tee "$log" || exit 1
  # One of another name is no proof.
  grep -Fqx "test $name ... ok" "$log" || exit 1
done <<<"$failed"

echo "Passed alone, but failed beside others; look at why:" >&2
sed 's/^/  /' <<<"$failed" >&2
