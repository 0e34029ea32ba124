#!/usr/bin/env bash
# Finds words that the project no longer uses (scripts/prose.txt), in code, comments and pages.
set -euo pipefail
cd "$(dirname "$0")/.."

found=0
while IFS=$'\t' read -r words instead; do
  case $words in '' | '#'*) continue ;; esac
  if git grep -nIiE -e "$words" -- . ':!scripts/prose.*' ':!*.pcap*' ':!Cargo.lock' ':!tests/data' ':!*.json'; then
    echo "prose: write: $instead" >&2
    found=1
  fi
done < scripts/prose.txt
exit "$found"
