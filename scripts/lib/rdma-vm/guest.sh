# Runs in the guest: network, soft-RoCE, the command, its exit status, the end.
# shellcheck shell=bash
source /run/kvrail-vm/settings
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root

# until_true COMMAND…: at most 2 s.
until_true() {
  local i
  for i in $(seq 20); do
    if "$@" >/dev/null 2>&1; then return 0; fi
    sleep 0.1
  done
}

mkdir -p /lib/modules
mount -t tmpfs tmpfs /lib/modules
ln -s "$cache/kernel/lib/modules/$kernel" "/lib/modules/$kernel"
modprobe virtio_console
until_true ls /dev/vport0p1 /dev/vport1p1
for port in /dev/vport*p1; do
  exec >"$port" 2>&1
done
ulimit -l unlimited
ulimit -n 65536
hostname "node$node"
ip link set lo up
modprobe virtio_net
until_true ip link show eth0
modprobe -a ib_uverbs rdma_ucm ib_umad rdma_rxe
for card in 0 1; do
  ip link show "eth$card" >/dev/null 2>&1 || continue
  ip addr add "${address/.77./.7$((7 + card)).}/24" dev "eth$card"
  ip link set "eth$card" mtu 4200
  ip link set "eth$card" up
  rdma link add "rxe$card" type rxe netdev "eth$card" || echo 'rdma-vm: soft-RoCE could not be set up'
done
if [[ -n $out ]]; then
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=mmap out "$out"
fi
# A link-local address that is still being checked can't be used.
until_true sh -c '! ip -6 addr | grep -q tentative'

/bin/bash /run/kvrail-vm/command </dev/null
echo $? >/run/kvrail-vm/status.new
dmesg >/run/kvrail-vm/dmesg 2>/dev/null
mv /run/kvrail-vm/status.new /run/kvrail-vm/status
sync
busybox poweroff -f
