#!/bin/sh
# The unit that gets installed is one that systemd takes, and the example configuration one that kvraild takes.
# Usage: service_test.sh UNIT KVRAILD EXAMPLE SYSUSERS
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$2" --config "$3" --check-config
if ! command -v systemd-analyze >/dev/null; then
  echo "SKIP: no systemd-analyze (package systemd)"
  exit 77
fi
# systemd wants the programs of a unit to be there; nothing is installed yet, so the build's stands for it.
sed "s|^\(Exec[A-Za-z]*=\)[^ ]*|\1$2|" "$1" >"$folder/kvraild.service"
code=0
said=$(systemd-analyze verify --man=no "$folder/kvraild.service" 2>&1) || code=$?
if printf '%s\n' "$said" | grep kvraild; then
  echo "systemd has something to say of the unit"
  exit 1
fi
if [ "$code" -ne 0 ]; then
  echo "SKIP: systemd-analyze cannot work here: $said"
  exit 77
fi
mkdir "$folder/etc"
systemd-sysusers --root="$folder" - <"$4"
grep '^kvrail:' "$folder/etc/passwd" "$folder/etc/group"
