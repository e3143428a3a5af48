# Sourced by the scripts beside it: where things are, how they report, how they build.
# shellcheck shell=bash

KVRAIL_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
KVRAIL_JOBS=${KVRAIL_JOBS:-$(nproc)}
readonly KVRAIL_ROOT KVRAIL_JOBS

# say TEXT: one progress line, with the seconds since the script began.
say() {
  printf '[%4ds] %s\n' "$SECONDS" "$*"
}

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# with_ccache COMPILER: the compiler behind ccache where that is installed.
with_ccache() {
  if command -v ccache >/dev/null; then
    printf 'ccache %s' "$1"
  else
    printf '%s' "$1"
  fi
}

# configure NAME CC CXX [MESON OPTIONS]: sets build/NAME up, once; an existing folder is only refreshed, which
# also finds folders of the source tree that have come since.
configure() {
  local name=$1 cc=$2 cxx=$3
  shift 3
  local folder=$KVRAIL_ROOT/build/$name log
  log=$KVRAIL_ROOT/build/$name.configure.log
  mkdir -p "$KVRAIL_ROOT/build"
  local refresh=()
  if [[ -f $folder/build.ninja ]]; then
    refresh=(--reconfigure)
  else
    rm -rf "$folder"
  fi
  if ! CC=$(with_ccache "$cc") CXX=$(with_ccache "$cxx") \
      meson setup "${refresh[@]}" "$folder" "$KVRAIL_ROOT" "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "configuring build/$name failed; the whole log is $log"
  fi
}

# compile NAME [TARGETS]: builds build/NAME, everything without targets.
compile() {
  local name=$1
  shift
  if ! ninja -C "$KVRAIL_ROOT/build/$name" -j "$KVRAIL_JOBS" "$@" >"$KVRAIL_ROOT/build/$name.build.log" 2>&1; then
    grep -v '^\[' "$KVRAIL_ROOT/build/$name.build.log" | head -n 80 >&2
    die "building build/$name failed; the whole log is build/$name.build.log"
  fi
}

# programs NAME: the ninja targets of all programs of build/NAME outside tests/, one a line.
programs() {
  python3 "$KVRAIL_ROOT/scripts/lib/targets.py" "$KVRAIL_ROOT/build/$1" --programs
}

configure_release() {
  configure release gcc g++ --buildtype=release
}
