#!/bin/busybox sh
# The guest's first program: mounts the host's file system under one of memory and goes on there with guest.sh.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do
  $b insmod "/modules/$module" || $b echo "init: $module can't be loaded"
done </modules/order
p=trans=virtio,version=9p2000.L,msize=512000
$b mount -t 9p -o $p,ro,cache=loose host /lower || $b poweroff -f
$b mount -t tmpfs -o size=75% tmpfs /upper
$b mkdir -p /upper/files /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work,xino=off,index=off overlay /new ||
  $b poweroff -f
for d in proc sys dev; do $b mount --move /$d /new/$d; done
$b mkdir -p /new/dev/shm /new/dev/pts
$b mount -t tmpfs tmpfs /new/dev/shm
$b mount -t devpts devpts /new/dev/pts
$b mount -t tmpfs tmpfs /new/run
$b mkdir -p /new/run/kvrail-vm
$b mount -t 9p -o $p,cache=none run /new/run/kvrail-vm || $b poweroff -f
exec $b chroot /new /bin/bash /run/kvrail-vm/guest.sh
