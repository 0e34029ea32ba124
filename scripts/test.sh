#!/usr/bin/env bash
# Runs every test, beside each other where they allow it. A test that fails runs once more, alone, and must
# pass then.
#
#   first             programs that only compute, beside the tests in namespaces that mostly wait
#   then              the oracle, alone: on a busy machine, the kernel's answers come later than it waits for them
#   then              programs with routers on AF_XDP once more, with two workers each (TOLLWAY_WORKERS)
#   then              virtual machines (minutes, and one processor each), beside the tests in namespaces that measure
#                     times, rates or losses, one after the other, and then two at a time
#   at the end        tests in the documentation, and what has failed
#
# A busy host can take the processors away for a second, and then measured times are wrong. So the script lists
# the tests that passed only alone, for somebody to investigate. Nothing runs a second time, and the script fails,
# if more than a few tests failed, if a program died, if its output cannot be parsed, or if a test in the
# documentation failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
# Only `foreground` selects tests by kind: with the caller's own selection, the other runs would leave tests out.
unset TOLLWAY_TESTS TOLLWAY_WORKERS
MOST=5
# The end of the names of tests in virtual machines.
MACHINE=_in_a_virtual_machine
work=$(mktemp -d) || exit 1
background=
# In a session of its own, the background does not end with this script by itself.
trap '[ -z "$background" ] || kill -- "-$background" 2>/dev/null; rm -rf "$work"' EXIT

# Ends the script with a sentence that says why.
die() {
  echo "test.sh: $1" >&2
  exit 1
}

# Runs one program from its package's directory, and prints its output and its time. Appends a line to
# $work/ended, one to $work/left-out for each test that cannot run here, and one to $work/failed for each
# failed test, or one with the test "-" if the program died.
run() {
  local program=$1 log begin=$SECONDS
  shift
  log=$(mktemp -p "$work") || return
  local directory executable
  IFS=$'\t' read -r _ directory executable <<<"$program"
  (cd "$directory" && "$executable" "$@") </dev/null >"$log" 2>&1
  local status=$?
  echo "$program" >>"$work/ended"
  grep ' \.\.\. left out: ' "$log" | sed "s/^/${executable##*/}: /" | tee -a "$work/left-out" >"$log.left-out"
  # A program without tests of this kind needs no line, but each test that is left out does.
  if grep -Eqx '(running 0 tests|test result: ok\. 0 passed.*)' "$log" && [ $status = 0 ]; then
    cat "$log.left-out"
    return
  fi
  {
    echo "== ${directory##*/} ${executable##*/} ${TOLLWAY_TESTS:-} $*${TOLLWAY_WORKERS:+ with $TOLLWAY_WORKERS workers}, $((SECONDS - begin)) s"
    grep -v '^$' "$log"
  } >"$log.shown"
  cat "$log.shown"
  [ $status = 0 ] && return
  # libtest ends with status 101, the programs with a main function of their own with the number of failed tests.
  awk -v program="$program" -v workers="${TOLLWAY_WORKERS:-1}" -v status=$status '
    /^test [A-Za-z0-9_:]+ \.\.\. FAILED$/ { name[++count] = $2 }
    # The output of a program that ran in a virtual machine ends with its own result: the last one counts.
    /^test result: / { failed = $3 == "FAILED." ? $6 : 0; expected = $7 == "failed;" ? 101 : failed }
    END {
      # A program that died after it had printed its result ended with another status.
      if (!failed || failed > count || status != expected) { print program "\t" workers "\t-"; exit }
      for (i = count - failed + 1; i <= count; i++) print program "\t" workers "\t" name[i]
    }' "$log" >>"$work/failed"
}

computing() {
  while IFS= read -r program; do run "$program"; done <"$work/computing"
}

# Takes a program from the list of those whose tests in virtual machines have not begun.
next_machine() {
  {
    flock 9
    head -n 1 "$work/machines"
    sed -i 1d "$work/machines"
  } 9>"$work/machines-lock"
}

machines() {
  local program
  while program=$(next_machine) && [ -n "$program" ]; do run "$program" "$MACHINE"; done
}

# Runs a function beside the following ones, at a niceness. A kernel that groups processes by
# session (sched(7), "autogroup") has a niceness for the session, and heeds that of a process within it only.
beside() {
  setsid nice -n "$2" bash -c "set -uo pipefail; $(declare -f run next_machine "$1")
    echo $2 2>/dev/null >/proc/self/autogroup; $1" &
  background=$!
}

# Waits for what runs beside others.
wait_beside() {
  wait "$background" || die "the tests that ran beside others ended with an error, so some may not have run"
  background=
}

lines() {
  wc -l <"$work/$1"
}

# Runs the tests in namespaces of one kind: those that mostly wait (beside), or those that measure (alone).
foreground() {
  while IFS= read -r program; do TOLLWAY_TESTS=$1 run "$program" --skip "$MACHINE"; done
}

# Runs those that mostly wait in the programs below, with routers of two workers; `make workers` has those that measure.
with_two_workers() {
  TOLLWAY_WORKERS=2 foreground beside <"$work/two-workers"
}

# Compiles first, then lists the programs: name, directory and executable, between tabs.
cargo test --workspace --locked --lib --bins --tests --no-run --message-format=json-render-diagnostics >"$work/built" || exit 1
sed -nE 's/.*"manifest_path":"([^"]*)\/Cargo.toml".*"name":"([^"]*)","src_path".*"profile":\{[^}]*"test":true\}.*"executable":"([^"]*)".*/\2\t\1\t\3/p' \
  "$work/built" >"$work/programs"
[ "$(lines programs)" = "$(cargo metadata --no-deps --format-version 1 --locked | grep -o '"test":true' | wc -l)" ] ||
  die "the list of test programs is not complete"
# The programs with a main function of their own start their tests in namespaces.
awk '/^name = /{ name = $3 } /^harness = false/{ gsub(/"/, "", name); print name }' crates/tollway/Cargo.toml >"$work/names"
awk -F'\t' -v kind="$work/namespaces" -v rest="$work/computing" '
  NR == FNR { own[$1]; next } { print > (($1 in own) && $2 ~ /\/tollway$/ ? kind : rest) }' \
  "$work/names" "$work/programs"
grep -E $'^(af_xdp|router)\t' "$work/namespaces" >"$work/two-workers"
# Those that take longest come first.
{
  grep -E $'^(apps|oracle|tc)\t' "$work/namespaces"
  grep -Ev $'^(apps|oracle|tc)\t' "$work/namespaces"
} >"$work/machines"
touch "$work/"{namespaces,computing,ended,left-out,failed}
[ -s "$work/names" ] || die "crates/tollway/Cargo.toml names no test with a main function of its own"
[ "$(lines namespaces)" = "$(lines names)" ] ||
  die "$(lines namespaces) of the $(lines names) tests with a main function of their own were built"
[ $(($(lines computing) + $(lines namespaces))) = "$(lines programs)" ] ||
  die "$(lines computing) and $(lines namespaces) test programs do not add up to $(lines programs)"
[ "$(lines two-workers)" = 2 ] || die "the programs to run with two workers are not af_xdp and router"
export work MACHINE

beside computing 5
grep -v ^oracle "$work/namespaces" | foreground beside
wait_beside
grep ^oracle "$work/namespaces" | foreground beside
with_two_workers
# The machines measure times, too.
beside machines 0
foreground alone <"$work/namespaces"
# The processor is free for the rest of them.
machines
wait_beside
cargo test --workspace --locked --doc
documentation=$?

if [ -s "$work/left-out" ]; then
  echo "Left out:" >&2
  sed 's/^/  /' "$work/left-out" >&2
fi
failed=$(cat "$work/failed")
# Each program that only computes runs once, and each other one once for each of three kinds of tests. Some run once
# more, with two workers.
runs=$(($(lines computing) + 3 * $(lines namespaces) + $(lines two-workers)))
if [ $documentation != 0 ] || [ "$(lines ended)" != $runs ] ||
  grep -q $'\t-$' <<<"$failed" || [ "$(lines failed)" -gt $MOST ]; then
  echo "Failed:" >&2
  cut -f 1,4,5 "$work/failed" >&2
  [ $documentation = 0 ] || echo "tests in the documentation" >&2
  [ "$(lines ended)" = $runs ] || die "only $(lines ended) of $runs runs of test programs ended"
  exit 1
fi
[ -n "$failed" ] || exit 0
while IFS=$'\t' read -r _ directory executable workers name; do
  (cd "$directory" && TOLLWAY_WORKERS=$workers "$executable" --exact "$name") </dev/null 2>&1 | tee "$work/again" || exit 1
  # A test of another name proves nothing.
  grep -Fqx "test $name ... ok" "$work/again" || exit 1
done <<<"$failed"

echo "Passed alone, but failed beside others; look at why:" >&2
cut -f 1,4,5 <<<"$failed" | sed 's/^/  /' >&2
