#!/usr/bin/env bash
# Compares builds of the library in turns, on a machine with a GPU, a C++ compiler and CUDA's headers: two minutes for two builds.
#
#   benches/gpu/versions.sh OUT FOLDER...
#
# Each FOLDER has `include` and libcachalot.so of a build, and gives the build its name. If functions had other names then, it has
# versions.cpp of that time, too. OUT gets processes.csv: seven processes of each build, in turns, since the speed of a virtual
# machine changes; and versions.csv, the table of tests/results/versions.md: each figure's median as a part of the first build's.
set -euo pipefail
out=$(readlink -f "${1:?usage: versions.sh OUT FOLDER...}")
shift
cuda=${CUDA:-/usr/local/cuda}
here=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for folder in "$@"; do
  name=$(basename "$folder")
  mkdir "$work/$name.d"
  # The loader looks for the name in the library.
  for file in libcachalot.so libcachalot.so.0.1; do
    ln -s "$(readlink -f "$folder/libcachalot.so")" "$work/$name.d/$file"
  done
  source=$here/versions.cpp
  [ ! -e "$folder/versions.cpp" ] || source=$folder/versions.cpp
  g++ -O2 -std=c++20 -I "$folder/include" -I "$cuda/include" -I "$here" "$source" -o "$work/$name" \
    -L "$work/$name.d" -lcachalot -Wl,-rpath,"$work/$name.d" -L "$cuda/lib64" -lcudart -lpthread
done
echo 'build,settings,what,figure,unit' >"$out/processes.csv"
for _ in 1 2 3 4 5 6 7; do
  for folder in "$@"; do
    name=$(basename "$folder")
    "$work/$name" "$name" >>"$out/processes.csv"
  done
done
python3 - "$out" "$(basename "$1")" <<'END'
import csv, statistics, sys
out, first = sys.argv[1:]
figures = {}
for row in csv.DictReader(open(f"{out}/processes.csv", encoding="utf-8")):
    figures.setdefault((row["settings"], row["what"], row["unit"]), {}).setdefault(row["build"], []).append(float(row["figure"]))
with open(f"{out}/versions.csv", "w", encoding="utf-8") as to:
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow(["settings", "what", "unit", "build", "median", "lowest", "highest", f"× {first}"])
    for (settings, what, unit), builds in figures.items():
        base = statistics.median(builds[first])
        for build, values in builds.items():
            middle = statistics.median(values)
            writer.writerow([f"`{settings}`", what, unit, build, f"{middle:.2f}", min(values), max(values), f"{middle / base:.3f}"])
END
cat "$out/versions.csv"
