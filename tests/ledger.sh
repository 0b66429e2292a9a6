#!/usr/bin/env bash
# Adds a campaign to a ledger: a CSV file with a line for each run, which docs/TRUST.md sums.
#
#   tests/ledger.sh FILE KIND CONFIGURATION SEEDS SECONDS OPERATIONS CHECKS FAULTS FINDINGS
#
# The line begins with the date, the commit and the machine. CACHALOT_COMMIT and CACHALOT_MACHINE name them where git or
# /proc/cpuinfo do not. Several processes may add lines at once.
set -euo pipefail
here=$(dirname "$0")
[ $# = 9 ] || { sed -n '4s/^# *//p' "$0" >&2; exit 2; }
file=$1
shift

commit=${CACHALOT_COMMIT:-$(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)}
machine=${CACHALOT_MACHINE:-$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) processors}
line=$(date -u +%F),$commit
for field in "$machine" "$@"; do
  case $field in
    *[,\"]*) line+=",\"${field//\"/\'}\"" ;;
    *) line+=,$field ;;
  esac
done
{
  flock 9
  [ -s "$file" ] || echo date,commit,machine,kind,configuration,seeds,seconds,operations,checks,faults,findings >&9
  echo "$line" >&9
} 9>>"$file"
