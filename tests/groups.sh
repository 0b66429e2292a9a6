#!/usr/bin/env bash
# Eight processes in one group under a limit, killed at random, also with the group's lock in their hands: a campaign of
# minutes, and no part of tests/run. The sum never exceeds the limit, and nothing is left after the last death. Then the same with four
# of them in containers, and a limit that changes; this needs the right to make namespaces. Then two tenants
# of one process at their limits, whose `low` and `max` are checked after each operation; before all, two tags of one allocator likewise.
#
#   tests/groups.sh [OPERATIONS [SEED]]      OPERATIONS: of each campaign; ten million if left out.
#
# Prints the seed and the figures, and what a reservation and a booking cost. The seed decides what each process asks for; the system decides the order.
set -euo pipefail
cd "$(dirname "$0")/.."
export CACHALOT_GROUP_OPERATIONS=${1:-10000000}
[ -z "${2:-}" ] || export CACHALOT_GROUP_SEED=$2

test() {
  cargo test --locked --profile campaign -p "${2:-cachalot-run}" --lib -- --exact "$1" --ignored --nocapture
}
test tests::tenants_campaign::ten_million_operations_of_two_tags cachalot-core
test group::processes::ten_million_operations
test group::processes::ten_million_operations_in_containers
test group::tenants::ten_million_operations_of_two_tenants
test group::processes::what_a_reservation_costs
test ledger::tests::what_a_booking_costs
