# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# kernel.sh - a kernel that is unpacked: its modules, and the initramfs that mounts the host's /. To be sourced,
# after cache.sh.

# What the guest loads: unpacked, since unpacking xz in an emulated CPU takes seconds.
MODULES=(
	9p 9pnet_virtio overlay
	ib_core ib_uverbs rdma_cm rdma_ucm smc smc_diag
	udp_tunnel ip6_udp_tunnel crc32_generic igb igbvf
	veth bridge bonding macvlan ipvlan 8021q vrf dummy
	rdma_rxe virtio_console
)
# virtio_pci: built in since 6.12
INITRAMFS_MODULES=(virtio_pci 9p 9pnet_virtio overlay)

# module_files KERNEL MODULE...: their files and those of all they need, in the order of loading, where KERNEL is the
# directory with release and root. What the kernel has built in is left out.
module_files() {
	local kernel=$1 release module
	release=$(<"$kernel/release")
	for module in "${@:2}"; do
		/sbin/modprobe -d "$kernel/root" -S "$release" --show-depends "$module"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# unpack_modules KERNEL: MODULES, and no file of hardware that no VM has, which is a third of all. What was built for the
# kernel (updates) goes: it hides the kernel's own module of the name.
unpack_modules() {
	local root=$1/root release file
	release=$(<"$1/release")
	rm -rf "$root/lib/modules/$release/updates"
	rm -rf "$root/lib/modules/$release/kernel"/{sound,drivers/{gpu,media,net/wireless,staging,iio,scsi,isdn}}
	/sbin/depmod -b "$root" "$release"
	module_files "$1" "${MODULES[@]}" | while read -r file; do
		[[ $file == *.ko.xz ]] || continue
		unxz "$file"
		strip -g "${file%.xz}" # and its signature: one check less
	done
	/sbin/depmod -b "$root" "$release"
}

# make_initramfs KERNEL: what mounts the host's /
make_initramfs() {
	local d=$1/initramfs.d n=10 file busybox=$CACHE/kernel/root/bin/busybox
	rm -rf "$d"
	mkdir -p "$d"/{bin,modules,proc,dev,lower,upper,newroot}
	cp "$busybox" "$d/bin/busybox"
	cp "$LAB/initramfs-init" "$d/init"
	module_files "$1" "${INITRAMFS_MODULES[@]}" | while read -r file; do
		cp "$file" "$d/modules/$n-${file##*/}" # loaded in the order of names
		n=$((n + 1))
	done
	# gzip: every kernel unpacks it
	(cd "$d" && find . | "$busybox" cpio -o -H newc | gzip -1) >"$1/initramfs.new"
	mv "$1/initramfs.new" "$1/initramfs"
	rm -rf "$d"
}
