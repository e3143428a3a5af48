#!/usr/bin/env bash
# In a guest: the suite `verbs` of a build folder. Usage: suite.sh BUILD TIMEOUT_MULTIPLIER OUT
# What Meson writes goes with the guest, so its log is copied out.
set -euo pipefail
status=0
meson test -C "$1" --no-rebuild --print-errorlogs --num-processes 1 --timeout-multiplier "$2" --suite verbs || status=$?
cp "$1/meson-logs/testlog.json" "$3/testlog.json"
exit "$status"
