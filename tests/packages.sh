#!/usr/bin/env bash
# Packages every crate that is to be published, without building it: seconds.
#
#   tests/packages.sh
#
# Fails on a warning of cargo, on a package without its README, its licences or, for the C interface, its headers, and on a
# library whose front page has no example.
set -euo pipefail
cd "$(dirname "$0")/.."

# In the order of their dependencies, as they are published. Every other crate says `publish = false`.
published=(cachalot-atomic-file cachalot-planner cachalot-core cachalot-policies cachalot-snapshot cachalot-cuda-abi cachalot-cuda cachalot-tuner cachalot cachalot-cudarc
  cachalot-replay cachalot-gate cachalot-run cachalot-cli)
headers=(cachalot.h cachalot/{blocks,cache,devices,diagnose,parking,plan,pools,ranges,settings,simulated,status,streams,tags}.h
  cachalot.hpp cachalot/{blocks,cache,devices,diagnose,failures,parking,plan,pools,ranges,resource,streams,tags}.hpp
  cachalot_cub.hpp cachalot_cuda_mr.hpp cachalot_ort.h cachalot_torch.h)

fail() {
  echo "tests/packages.sh: $1" >&2
  exit 1
}

of_workspace=$(grep -L '^publish = false' $(git ls-files '*/Cargo.toml') | xargs sed -n 's/^name = "\(cachalot.*\)"$/\1/p' | sort -u)
for name in $of_workspace; do
  [[ " ${published[*]} " == *" $name "* ]] || fail "$name is not in the list of published crates, and lacks publish = false"
done

target=${CARGO_TARGET_DIR:-target}
said=$(cargo package --locked --offline --no-verify --allow-dirty "${published[@]/#/--package=}" 2>&1) || fail "$said"
# A package without links has one warning: the pages of a crate that nobody has published do not exist.
if grep '^warning' <<<"$said" | grep -qvx 'warning: manifest has no documentation, homepage or repository'; then
  fail "$said"
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
for name in "${published[@]}"; do
  files=$(tar -tzf "$target/package/$name-$version.crate")
  wanted=(README.md LICENSE-MIT LICENSE-APACHE)
  [ "$name" != cachalot ] || wanted+=("${headers[@]/#/include/}")
  library=$name-$version/src/lib.rs
  if grep -qx "$library" <<<"$files"; then
    # A block without a language, or with `no_run`, is a doctest.
    tar -xzOf "$target/package/$name-$version.crate" "$library" | grep -xE '//! ```(no_run)?' >/dev/null ||
      fail "the front page of $name has no example"
  fi
  for file in "${wanted[@]}"; do
    grep -qx "$name-$version/$file" <<<"$files" || fail "$file is not in the package of $name"
  done
done
echo "packaged: ${published[*]}"
