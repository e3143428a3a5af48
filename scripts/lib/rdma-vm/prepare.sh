# Sourced by scripts/rdma-vm: what a guest needs, made once and kept in a folder.
# shellcheck shell=bash

# The kernel's modules that reach the root file system; the others are loaded from there.
readonly first_modules='virtio_pci 9pnet_virtio 9p overlay'

# prepare CACHE: kernel, modules and initial file system. Ends the script with 77 where packages can't be had.
prepare() {
  local cache=$1 lock
  exec {lock}>"$cache.lock"
  flock "$lock"
  if [[ ! -s $cache/ready ]]; then
    if ! "$KVRAIL_ROOT/scripts/setup" --vm >&2 || ! command -v qemu-system-x86_64 >/dev/null; then
      echo 'SKIP: QEMU and the RDMA tools can not be installed here (scripts/setup --vm)'
      exit 77
    fi
    fetch_kernel "$cache"
    pack_initial "$cache"
    echo "$version" >"$cache/ready"
  fi
  exec {lock}>&-
}

# fetch_kernel CACHE: Debian's kernel, unpacked and not installed. Sets version.
# The one for clouds has neither soft-RoCE nor 9p.
fetch_kernel() {
  local cache=$1 package
  package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
  version=${package#linux-image-}
  if [[ -z $version ]]; then
    echo 'SKIP: the package linux-image-amd64 can not be found (apt-get update?)'
    exit 77
  fi
  say "rdma-vm: fetching $package" >&2
  rm -rf "$cache/kernel"
  mkdir "$cache/kernel"
  if ! (cd "$cache" && apt-get -o APT::Sandbox::User="$(id -un)" download "$package" >"$cache/fetch.log" 2>&1 &&
      dpkg -x "$package"_*.deb kernel && rm -f "$package"_*.deb); then
    echo "SKIP: the package $package can not be fetched"
    exit 77
  fi
  /sbin/depmod -b "$cache/kernel" "$version"
  # As a plain ELF file it starts at once: a guest without KVM is slow at unpacking.
  python3 - "$cache/kernel/boot/vmlinuz-$version" "$cache/vmlinux" <<'PYTHON'
import lzma
import sys
image = open(sys.argv[1], 'rb').read()
packed = image[image.index(b'\xfd7zXZ\x00'):]
plain = lzma.LZMADecompressor().decompress(packed)
assert plain[:4] == b'\x7fELF', 'the kernel is packed in a way that this script does not know'
open(sys.argv[2], 'wb').write(plain)
PYTHON
}

# pack_initial CACHE: the first file system, with busybox and the few modules that reach the real one.
pack_initial() {
  local cache=$1 root=$1/initial module file
  rm -rf "$root"
  mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,upper,new}
  cp "$(command -v busybox)" "$root/bin/busybox"
  for module in $first_modules; do
    /sbin/modprobe -S "$version" -d "$cache/kernel" --show-depends "$module" | awk '$1 == "insmod" {print $2}'
  done | awk '!seen[$0]++' >"$cache/modules"
  while read -r file; do
    cp "$file" "$root/modules/"
    basename "$file"
  done <"$cache/modules" >"$root/modules/order"
  install -m 755 "$parts/init.sh" "$root/init"
  (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$cache/initrd.gz"
}
