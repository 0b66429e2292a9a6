#!/usr/bin/env bash
# Searches every short program of every setting for one against the theorems, then finds the planted defects: a campaign of
# minutes to hours.
#
#   tests/exhaustive.sh [SECONDS] [LENGTH]    the time for a setting, 60 by default, and the longest programs, 20 by default
#
# The table tells for each setting the longest programs of which all were run. tests/results/exhaustive.md has the results.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
length=${2:-20}

cargo build --locked --release -q -p cachalot-exhaustive
binary=${CARGO_TARGET_DIR:-target}/release/cachalot-exhaustive
"$binary" --length "$length" --seconds "$seconds" --meetings 64
"$binary" --defects --length 10 --seconds 600
