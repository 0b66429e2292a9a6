#!/usr/bin/env bash
# Runs every program with a planted memory error in every mode, and writes what was found. Takes a few minutes on a GPU.
#
#   OUT/run.sh RESULTS        OUT: the folder that build.sh has made
#
# RESULTS gets a file for each mode, with a line for each program, and machine.txt. JOBS programs run at a time (8). MODES
# names some of the modes. After LONGEST seconds (600) no further program begins, and the table says which did not run.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run.sh RESULTS}
mkdir -p "$results"
results=$(cd "$results" && pwd)
[ -x "$here/defects" ] || chmod +x "$here/defects"
[ ! -f "$here/defects.kernels.so" ] || export CACHALOT_HOST_KERNELS=$here/defects.kernels.so
# Beside the programs, or the machine's own.
sanitizer=$here/sanitizer/compute-sanitizer
[ -f "$sanitizer" ] || sanitizer=$(command -v compute-sanitizer || echo "$sanitizer")
deadline=$(($(date +%s) + ${LONGEST:-600}))
export here results sanitizer deadline

# one MODE SETTINGS TOOL NAME: a line of the program, and the tool's count of errors and first address.
one() {
  local mode=$1 settings=$2 tool=$3 name=$4 log line errors address
  [ "$(date +%s)" -lt "$deadline" ] || return 0
  log=$(mktemp)
  if [ "$tool" = none ]; then
    # A free of a guarded block may wait for what the gates hold back.
    line=$(DEFECTS_GATE_MS=2000 timeout -k 2 30 "$here/defects" "$name" "$settings" 2>"$log")
    # The emulated driver delivers a fault as a signal, which ends the program.
    [ $? != 139 ] || [ -z "${CACHALOT_HOST_KERNELS:-}" ] || line="$name	found	-	-	-		-"
    # A canary stops nothing: a line of the log names the first byte that was overwritten.
    errors=$(grep -ac "memory was overwritten" "$log")
    address=$(sed -n 's/.*memory was overwritten: \(0x[0-9a-f]*\) .*/\1/p' "$log" | head -n 1)
    [ "$errors" != 0 ] || errors=-
  else
    # shellcheck disable=SC2086
    DEFECTS_GATE_MS=300 timeout -k 2 60 "$sanitizer" $tool --log-file "$log" "$here/defects" "$name" "$settings" >"$log.out" 2>"$log.err"
    line=$(grep -a "^$name" "$log.out")
    errors=$(sed -n 's/.*ERROR SUMMARY: \([0-9]*\) error.*/\1/p' "$log" | tail -n 1)
    # A process that ends without its destructors may leave no summary.
    errors=${errors:-$(grep -ac "Address 0x" "$log")}
    address=$(sed -n 's/.*\([Aa]ddress\|[Aa]ccess to\) \(0x[0-9a-f]*\).*/\2/p' "$log" | head -n 1)
    # The reports, to read.
    { echo "== $mode $name"; head -n 40 "$log"; } >>"$results/reports/$mode.$name.txt"
    rm -f "$log.out" "$log.err"
  fi
  rm -f "$log"
  printf '%s\t%s\t%s\n' "${line:-$name	broken	-	-	-		-}" "${errors:--}" "${address:--}" >>"$results/$mode.txt"
}
export -f one

modes=(
  "nothing||none"
  "all|guard:all|none"
  "after|guard:after|none"
  "before|guard:before|none"
  "canary|canary:True|none"
  "nvtx|nvtx:auto|--tool memcheck"
  "races|policy:direct|--tool memcheck --track-stream-ordered-races all"
  "direct|policy:direct,nvtx:off|--tool memcheck"
  "memcheck|nvtx:off|--tool memcheck"
)
# Only by name: without the library, for a comparison; and a tool that reports what a program reads before it has written it.
named=(
  "async|async|--tool memcheck --track-stream-ordered-races all"
  "sampled|guard:sampled:1|none"
  "initcheck|nvtx:auto|--tool initcheck"
)
[ -z "${MODES:-}" ] || modes+=("${named[@]}")
mkdir -p "$results/reports"
rm -f "$results/reports/"*.txt
{
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || echo "the emulated driver"
  [ ! -f "$sanitizer" ] || "$sanitizer" --version | grep -i version | head -n 1
  date -u +%Y-%m-%d
} >"$results/machine.txt"
for mode in "${modes[@]}"; do
  IFS='|' read -r name settings tool <<<"$mode"
  [ -z "${MODES:-}" ] || [[ " $MODES " == *" $name "* ]] || continue
  if [ "$tool" != none ] && [ ! -f "$sanitizer" ]; then
    echo "left out: $name (no compute-sanitizer beside the programs)" >&2
    continue
  fi
  [ "$tool" = none ] || chmod +x "$sanitizer" "$here"/sanitizer/TreeLauncher* 2>/dev/null
  : >"$results/$name.txt"
  begin=$(date +%s)
  "$here/defects" list | xargs -P "${JOBS:-8}" -I{} bash -c 'one "$@"' _ "$name" "$settings" "$tool" {}
  echo "$name: $(wc -l <"$results/$name.txt") programs, $(($(date +%s) - begin)) s" >&2
done
python3 "$here/table.py" "$results" || echo "no table: table.py needs Python" >&2
