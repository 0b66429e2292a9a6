#!/usr/bin/env bash
# Fetches Debian's Chromium with the libraries that this machine does not have, for the test that drives the page of `cachalot view`.
#
#   eval "$(scripts/setup/chromium.sh)" && cargo test -p cachalot-cli --test all view_page::
#
# The packages are unpacked into .tools/, which git ignores, and not installed. A Chromium in PATH is taken instead.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
to=$root/.tools/chromium

if installed=$(command -v chromium); then
  echo "export CACHALOT_CHROMIUM='$installed'"
  exit
fi
if [ ! -e "$to/.unpacked" ]; then
  rm -rf "$to"
  mkdir -p "$to/packages" "$to/root"
  # The lists of packages may be too old to fetch from. Only root may renew them.
  apt-get -qq update >&2 || true
  uris=$(apt-get install -y --no-install-recommends --print-uris chromium)
  names=$(sed -n "s|^'[^']*' \([^_]*\)_.*|\1|p" <<<"$uris")
  # shellcheck disable=SC2086 -- a word for each package.
  (cd "$to/packages" && apt-get -qq download $names >&2)
  for package in "$to"/packages/*.deb; do
    dpkg-deb -x "$package" "$to/root"
  done
  rm -r "$to/packages"
  cat >"$to/chromium" <<END
#!/bin/sh
# Runs the unpacked Chromium with the unpacked libraries.
export LD_LIBRARY_PATH='$to/root/usr/lib/x86_64-linux-gnu:$to/root/usr/lib/x86_64-linux-gnu/pulseaudio'
exec '$to/root/usr/lib/chromium/chromium' "\$@"
END
  chmod +x "$to/chromium"
  "$to/chromium" --version >&2
  touch "$to/.unpacked"
fi
echo "export CACHALOT_CHROMIUM='$to/chromium'"
