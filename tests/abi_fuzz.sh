#!/usr/bin/env bash
# Runs random programs over every function of the C interface, on the emulated driver, optimised and with all assertions:
# a campaign, and no part of tests/run.
#
#   tests/abi_fuzz.sh [OPERATIONS] [SEED]      OPERATIONS: 5,300,000 if left out, an hour on two cores. SEED: the first, 1.
#
# The last line has the counts. Each finding is printed with its case, a line of JSON: tests/abi-fuzz/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
operations=${1:-5300000}
seed=${2:-1}
each=7000
cargo build --locked --profile campaign -p cachalot-emulated-driver -p cachalot-abi-fuzz
target/campaign/cachalot-abi-fuzz campaign --seed "$seed" --seeds $(((operations + each - 1) / each)) --ops "$each" \
  --jobs "$(nproc)" --calls
