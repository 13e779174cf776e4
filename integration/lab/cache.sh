# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# cache.sh owns what setup and vm must agree on: where the cache is, which Debian
# packages the lab needs, and whether the cache can be used as it is. It changes
# nothing. To be sourced.

LAB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
CACHE=${RDMA_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rdma-lab}

# Everything a boot uses:
#   kernel/release              the kernel's release, e.g. 6.12.117+deb12-amd64
#   kernel/root/boot            the kernel
#   kernel/root/lib/modules     its modules; in updates/ those that setup built: the patched rdma_rxe, erdma, siw, netdevsim. And
#                               erdma-parent/ and smc-receive-sge/, variants of erdma and smc, see patches
#   kernel/initramfs            busybox, initramfs-init and what it takes to mount /
#   kernels/SERIES              the same of another kernel, see kernel
#   qemu/qemu                   QEMU 10 (igb NICs), a wrapper
#   qemu-11/qemu                QEMU 11 (vfio-user), a wrapper
#   containerd/root             containerd with its shim and ctr, and runc
#   images                      the containers' images, see images
#   ready                       the inputs the above was made from, see cache_key
PACKAGES=(
	ca-certificates debian-archive-keyring      # getting the rest
	qemu-system-x86                             # for its libraries: the QEMU in the cache uses them
	gcc-12 make patch binutils libelf1 xz-utils # building a module
	kmod                                        # modules in the guest
	udev iproute2 iputils-ping procps                      # in the guest
	rdma-core ibverbs-utils ibverbs-providers rdmacm-utils perftest ucx-utils
	jq tar libseccomp2                          # making images; runc
)

die() {
	echo "lab: $*" >&2
	exit 125
}

# Which of PACKAGES are not installed. dpkg's own files answer in 1 ms, dpkg-query in 60.
missing_packages() {
	local package
	for package in "${PACKAGES[@]}"; do
		[[ -e /var/lib/dpkg/info/$package.list || -e /var/lib/dpkg/info/$package:amd64.list ]] || echo "$package"
	done
}

# What the contents of the cache follow from, as one word.
cache_key() {
	{
		cat "$LAB/cache.sh" "$LAB/setup" "$LAB/archive.sh" "$LAB/kernel.sh" "$LAB/drivers.sh" "$LAB/initramfs-init" "$LAB"/patches/*.patch
		cat "$LAB/images" "$LAB/../../scripts/oci-archive"
		echo "${RDMA_LAB_KERNEL-}"
	} | sha256sum | cut -c 1-16
}

# The packages count too: a cache can come from another machine, as in CI.
cache_is_ready() {
	[[ -f $CACHE/ready && $(<"$CACHE/ready") == "$(cache_key)" && -z $(missing_packages) ]]
}
