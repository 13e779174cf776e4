# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# drivers.sh - the RDMA drivers, SMC and netdevsim, which Debian's kernel does not have as the lab needs them, built from its source.
# To be sourced by setup.

# Debian has siw, erdma and netdevsim switched off.
DRIVERS=(drivers/infiniband/sw/rxe drivers/infiniband/sw/siw drivers/infiniband/hw/erdma drivers/net/netdevsim net/smc)

# do_sources VERSION...: of DRIVERS, each in a directory of its name
do_sources() {
	local version=${1%% *} d=$CACHE/sources
	rm -rf "$d"
	fetch "$d" "linux-source-6.12=$version"
	dpkg --fsys-tarfile "$d"/deb/linux-source-*.deb | tar -xO ./usr/src/linux-source-6.12.tar.xz |
		tar -xJ -C "$d" --transform 's,^linux-source-6.12/\(drivers/infiniband/..\|drivers/net\|net\)/,,' "${DRIVERS[@]/#/linux-source-6.12/}"
	rm -rf "$d/deb"
}

# build DRIVER CONFIG INTO [PATCH...]: the modules of the driver's source, patched, in the directory INTO. What an earlier
# call has compiled and patched is kept.
build() {
	local driver=$1 config=$2 into=$3 d=$CACHE/built/$1 patch module
	mkdir -p "$CACHE/built" "$into"
	[[ -e $d ]] || cp -r "$CACHE/sources/$driver" "$d"
	for patch in "${@:4}"; do
		patch -d "$d" -p1 <"$patch"
	done
	make -j"$(nproc)" -C "$CACHE/kernel/root/usr/src/linux-headers-$(<"$CACHE/kernel/release")" M="$d" \
		"$config=m" CONFIG_DEBUG_INFO_BTF_MODULES= modules
	for module in "$d"/*.ko; do
		strip -g -o "$into/${module##*/}" "$module"
	done
}

# where_built: depmod prefers what is in there to the distribution's
where_built() { echo "$CACHE/kernel/root/lib/modules/$(<"$CACHE/kernel/release")/updates"; }

do_rxe() {
	rm -rf "$CACHE/built"
	build rxe CONFIG_RDMA_RXE "$(where_built)" "$LAB"/patches/*-rxe-*.patch
	/sbin/depmod -b "$CACHE/kernel/root" "$(<"$CACHE/kernel/release")"
}

# The variant of erdma.ko is where depmod does not find it: guest puts it into the other's place.
do_iwarp() {
	rm -rf "$CACHE/built"
	build siw CONFIG_RDMA_SIW "$(where_built)"
	build erdma CONFIG_INFINIBAND_ERDMA "$(where_built)"
	build erdma CONFIG_INFINIBAND_ERDMA "$CACHE/kernel/root/lib/modules/erdma-parent" "$LAB"/patches/erdma-*.patch
	/sbin/depmod -b "$CACHE/kernel/root" "$(<"$CACHE/kernel/release")"
}

# The variant of smc.ko is where depmod does not find it: a test puts it into the kernel's place.
do_smc() {
	rm -rf "$CACHE/built/smc"
	build smc CONFIG_SMC "$CACHE/kernel/root/lib/modules/smc-receive-sge" "$LAB"/patches/smc-*.patch
}

do_netdevsim() {
	rm -rf "$CACHE/built/netdevsim"
	build netdevsim CONFIG_NETDEVSIM "$(where_built)"
	/sbin/depmod -b "$CACHE/kernel/root" "$(<"$CACHE/kernel/release")"
}
