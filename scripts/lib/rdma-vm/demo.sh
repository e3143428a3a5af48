#!/usr/bin/env bash
# The demo over RDMA in two guests, one node in each: one rate, the policies adaptive and full. Options go to the demo.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

if [[ -n ${KVRAIL_IN_VM:-} ]]; then
  exec build/release/perf/demo/kvrail-demo --half "$KVRAIL_VM_NODE" --addresses "${KVRAIL_VM_IPS// /,}" \
    --key build/demo-verbs/key --out build/demo-verbs/out --brief --tasks 5 "$@"
fi
cd "$KVRAIL_ROOT"
mkdir -p build/demo-verbs/out
(umask 077 && head -c 32 /dev/urandom | base64 >build/demo-verbs/key)
exec scripts/rdma-vm --two --timeout 900 --out build/demo-verbs/out -- "${BASH_SOURCE[0]}" "$@"
