#!/usr/bin/env bash
# Searches every short program of every setting for one against the theorems, then finds the planted defects: a campaign of
# minutes to hours.
#
#   tests/exhaustive.sh [SECONDS] [LENGTH]    the time for a setting, 60 by default, and the longest programs, 20 by default
#
# The table, CSV as in tests/results/exhaustive/, tells for each setting the longest programs of which all were run. LEDGER names a
# ledger (tests/ledger.sh) that gets a line: the programs, the states checked, and the settings with a finding.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
length=${2:-20}

cargo build --locked --release -q -p cachalot-exhaustive
binary=${CARGO_TARGET_DIR:-target}/release/cachalot-exhaustive
table=$(mktemp)
trap 'rm -f "$table"' EXIT
found=0
"$binary" --length "$length" --seconds "$seconds" --meetings 64 | tee "$table" || found=1
if [ -n "${LEDGER:-}" ]; then
  read -r states programs findings < <(python3 - "$table" <<'END'
import csv, sys
rows = list(csv.DictReader(open(sys.argv[1], encoding="utf-8")))
print(*(sum(int(row[name]) for row in rows) for name in ("states", "programs run")), sum(row["found"] != "0" for row in rows))
END
  )
  tests/ledger.sh "$LEDGER" "every short program" "$(grep -c '`' "$table") settings" "" $SECONDS "$programs" "$states" 0 "$findings"
fi
[ "$found" = 0 ]
"$binary" --defects --length 10 --seconds 600
