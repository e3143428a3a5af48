#!/usr/bin/env bash
# In a guest: a suite of tests of a build folder. Usage: suite.sh BUILD TIMEOUT_MULTIPLIER OUT SUITE
# Of two guests the first runs the tests, the second what the first one asks for.
# What Meson writes goes with the guest, so its log is copied out.
set -euo pipefail
agent_port=7470
if [[ $KVRAIL_VM_NODE == 1 ]]; then
  exec python3 tests/verbs/guest_agent.py "$KVRAIL_VM_IP" "$agent_port"
fi
status=0
meson test -C "$1" --no-rebuild --print-errorlogs --num-processes 1 --timeout-multiplier "$2" --suite "$4" || status=$?
cp "$1/meson-logs/testlog.json" "$3/$4.json"
if [[ $KVRAIL_VM_IPS == *' '* ]]; then
  echo end >"/dev/tcp/${KVRAIL_VM_IPS#* }/$agent_port" || true
fi
exit "$status"
