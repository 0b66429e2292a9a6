# Sourced by tests that need a system which nobody has changed: Debian 12 in a folder, under a layer that is thrown away. Needs root,
# overlays, and Debian's mmdebstrap.

# clean PACKAGES SCRIPT [FOLDER:PLACE...]: runs a script of bash in a Debian with these packages and without a compiler, unless they bring
# one. There is no HOME. Each PLACE shows a FOLDER of this machine. CLEAN_ARCHITECTURE names another architecture of Debian, whose
# programs the kernel must know how to run: /usr/lib/binfmt.d/ of qemu-user-static says how, and binfmt_misc takes it.
clean() {
  local store=$PWD/target/ways script=$2 architecture=${CLEAN_ARCHITECTURE:-$(dpkg --print-architecture)}
  local base=$store/root-$architecture-${1//,/-} layer
  if [ ! -e "$base/bin/sh" ]; then
    rm -rf "$base"
    mkdir -p "$store"
    mmdebstrap --quiet --variant=minbase --architectures="$architecture" --include="ca-certificates,$1" bookworm "$base" </dev/null >&2
    cp /etc/ssl/certs/ca-certificates.crt "$base/etc/ssl/certs/"
  fi
  shift 2
  layer=$(mktemp -d -p "$store" layer-XXXXXX)
  mkdir "$layer"/{upper,overlay,merged}
  local code=0
  # shellcheck disable=SC2016 # the inner shell's variables
  unshare --mount --pid --fork bash -euo pipefail -c '
    mount -t overlay overlay -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/overlay" "$1/merged"
    cd "$1/merged"
    script=$2
    for bind in "${@:3}"; do
      mkdir -p ".${bind#*:}"
      mount --bind "${bind%%:*}" ".${bind#*:}"
    done
    mount -t proc proc proc
    mount --bind /dev dev
    cp /etc/resolv.conf /etc/hosts etc/
    exec chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
      bash -euo pipefail -c "$script"
  ' "$base" "$layer" "$script" "$@" || code=$?
  rm -rf "$layer"
  return "$code"
}
