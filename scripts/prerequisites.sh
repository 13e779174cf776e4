# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# prerequisites.sh - functions that install packages and tools that the scripts need and the machine lacks. To be
# sourced.

# Debian packages for builds, checks, tests and images.
PACKAGES=(gcc libc6-dev shellcheck python3 iproute2 containernetworking-plugins systemd jq bubblewrap
	e2fsprogs lldpd network-manager openssl podman strace xfsprogs)

# not_installed PACKAGE...: prints the packages that are not installed
not_installed() {
	local package
	for package; do
		[[ -e /var/lib/dpkg/info/$package.list || -e /var/lib/dpkg/info/$package:amd64.list ]] ||
			echo "$package"
	done
}

# keep_idle PACKAGE UNIT: if PACKAGE is not installed, masks its service UNIT, because only tests in namespaces use the
# package
keep_idle() {
	local unit=/etc/systemd/system/$2
	[[ -e /var/lib/dpkg/info/$1.list || -e $unit ]] || {
		mkdir -p "${unit%/*}"
		ln -s /dev/null "$unit"
	}
}

# apt_install PACKAGE...: installs packages as root
apt_install() {
	apt-get update -q || true # a broken third-party source must not prevent the installation from Debian's
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

debian_packages() {
	local missing
	mapfile -t missing < <(not_installed "${PACKAGES[@]}")
	((${#missing[@]})) || return 0
	keep_idle network-manager NetworkManager.service
	keep_idle lldpd lldpd.service
	apt_install "${missing[@]}"
}

# rust_toolchain: installs the toolchain of rust-toolchain.toml by rustup if it is missing. If only rustup's default
# toolchain has the same version, uses the default toolchain instead.
rust_toolchain() {
	local wanted
	! rustc --version >/dev/null 2>&1 || return 0
	wanted=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
	if [[ $(cd / && rustc --version) == "rustc $wanted "* ]]; then
		RUSTUP_TOOLCHAIN=$(cd / && rustup show active-toolchain | cut -d ' ' -f 1)
		export RUSTUP_TOOLCHAIN
	else
		rustup toolchain install "$wanted"
	fi
}

# target_of ARCHITECTURE: prints Rust's target for the static programs of nodes and images
target_of() {
	case $1 in
	amd64) echo x86_64-unknown-linux-musl ;;
	arm64) echo aarch64-unknown-linux-musl ;;
	*)
		echo "$0: the architecture must be amd64 or arm64, not '$1'" >&2
		exit 2
		;;
	esac
}
# shellcheck disable=SC2034 # scripts that source this file use TARGET
TARGET=$(target_of amd64)

# rust_target TARGET: installs Rust's standard library for TARGET if it is missing
rust_target() {
	rustup target list --installed | grep -qx "$1" || rustup target add "$1"
}

# arm64_compiler: installs the packages that builds for arm64 need: a compiler for ring's C and assembler code, and the
# headers of a C library, which this code includes. The link needs no package: Rust has the linker and musl.
arm64_compiler() {
	aarch64-linux-gnu-gcc -fsyntax-only -x c - <<<'#include <stdint.h>' 2>/dev/null || {
		require_root
		apt_install gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	}
}

# arm64_environment: sets the environment in which cargo builds for arm64
arm64_environment() {
	export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
	export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
}

# arm64_tools: installs the packages for tests of arm64's programs on amd64: qemu-user, which emulates a process without
# binfmt_misc; skopeo, which reads an image as a runtime does; and arm64_compiler's packages, with which apt also
# installs the kernel's headers for the test "headers".
arm64_tools() {
	local missing
	arm64_compiler
	mapfile -t missing < <(not_installed qemu-user skopeo)
	((${#missing[@]} == 0)) || apt_install "${missing[@]}"
}

rust_components() {
	rustup component list --installed | grep -q rustfmt || rustup component add rustfmt
	rustup component list --installed | grep -q clippy || rustup component add clippy
}

# have_go VERSION: succeeds if Go VERSION or later is installed. Runs go in /, where no go.mod makes go download another
# version.
have_go() {
	local found
	found=$(cd / && go env GOVERSION 2>/dev/null) || return 1
	printf '%s\n' "$1" "${found#go}" | sort -VC
}

# Version of Go to download if Go is missing or older than 1.24. Debian 12's Go is older, but can download this version
# as a module, which it verifies by Go's checksum database.
GO=1.26.8

# go_toolchain: provides Go 1.24 or later, by which other scripts build programs in Go. Succeeds even if Go cannot be
# downloaded: scripts/test then skips the tests that need Go.
go_toolchain() {
	local directory
	! have_go 1.24 || return 0
	command -v go >/dev/null || {
		apt_install golang-go || return 0
	}
	directory=$(cd / && GOWORK=off timeout 600 go mod download -json "golang.org/toolchain@v0.0.1-go$GO.linux-amd64" |
		jq -r .Dir) || return 0
	# files of a module are not executable after the download
	chmod +x "$directory"/bin/* "$directory"/pkg/tool/*/*
	export PATH=$directory/bin:$PATH GOTOOLCHAIN=local
}

# have_go_modules DIRECTORY: downloads the missing modules of the Go program in DIRECTORY. Succeeds if all are present.
have_go_modules() {
	local try
	for try in 1 2 3; do
		! GOWORK=off timeout 600 go -C "$1" mod download || return 0
		((try == 3)) || sleep 5
	done
	return 1
}

require_root() {
	[[ $(id -u) == 0 ]] || {
		echo "$0: run it as root: it creates network namespaces, or installs missing packages" >&2
		exit 1
	}
}
