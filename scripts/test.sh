#!/usr/bin/env bash
# Runs every test. A test that fails beside others runs once more, alone, and must pass then.
#
# Virtual machines take minutes, and one processor: they run beside all other tests, one after the other. Many
# tests measure time or talk through namespaces, and a busy host can take the processors away for a second. At its
# end, the script lists the tests that passed only alone, so that somebody investigates. It fails at once after
# more than a few failures, if a program died, or if it cannot parse the output.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
MOST=3
# The end of the names of tests in virtual machines.
MACHINE=_in_a_virtual_machine
log=$(mktemp) || exit 1
machines=$(mktemp) || exit 1
others=
# In a session of its own, the machines do not end with this script by themselves.
trap 'rm -f "$log" "$machines"; [ -z "$others" ] || kill -- "-$others" 2>/dev/null' EXIT

# Prints a line for each failed test: cargo's name of its program, a tab, the test's name. The number of
# names must match the failures that the program reports, and the number of programs the total of cargo. The
# output of a program that ran in a virtual machine ends with its own result, and its tests are not counted.
failures() {
  awk '
    /^ +(Running|Doc-tests) / { count = 0; reported = 0 }
    /^test [A-Za-z0-9_:]+ \.\.\. FAILED$/ { name[++count] = $2 }
    /^test result: FAILED\. / {
      reported = $6
      if (reported == 0 || reported > count) exit failure = 1
      count -= reported
      for (i = 1; i <= reported; i++) of[i] = name[count + i]
    }
    /^error: (doc)?test failed, to rerun pass `/ {
      split($0, quoted, "`"); programs++
      if (count != 0 || reported == 0) exit failure = 1
      for (i = 1; i <= reported; i++) print quoted[2] "\t" of[i]
    }
    /^error: [0-9]+ targets? failed:$/ { all = $2 }
    END { exit failure || programs == 0 || programs != all }' "$1"
}

# Compiles first, so that both runs find everything compiled.
cargo test --workspace --locked --no-run || exit 1
setsid nice -n 5 cargo test --workspace --tests --locked --no-fail-fast -- "$MACHINE" > "$machines" 2>&1 &
others=$!
cargo test --workspace --locked --no-fail-fast -- --skip "$MACHINE" 2>&1 | tee "$log"
results=("${PIPESTATUS[@]}")
wait "$others"
results+=("$?")
others=
# What the machines said, without the programs that have none.
grep -v -e '^$' -e '^running 0 tests' -e ' 0 passed; 0 failed' "$machines"
[ "${results[*]}" = "0 0 0" ] && exit 0

failed=
for result in "${results[0]}:$log" "${results[2]}:$machines"; do
  case $result in
    0:*) ;;
    # Cargo exits with 101 if tests failed.
    101:*) failed+=$(failures "${result#*:}")$'\n' || exit 1 ;;
    *) exit 1 ;;
  esac
done
[ "${results[1]}" = 0 ] || exit 1
failed=$(sed '/^$/d' <<<"$failed")
[ "$(wc -l <<<"$failed")" -le "$MOST" ] || exit 1

while IFS=$'\t' read -r target name; do
  # The target is several words, such as "-p tollway --test live".
  # shellcheck disable=SC2086
  cargo test --locked $target -- --exact "$name" </dev/null 2>&1 | tee "$log" || exit 1
  # A test of another name proves nothing.
  grep -Fqx "test $name ... ok" "$log" || exit 1
done <<<"$failed"

echo "Passed alone, but failed beside others; look at why:" >&2
sed 's/^/  /' <<<"$failed" >&2
