# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# prerequisites.sh - installs the packages and tools that the scripts need and the machine lacks. To be
# sourced, after steps.sh.

# Debian packages: building and checking; the peers and tools that the tests drive; what makes images.
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

# keep_idle PACKAGE UNIT: the package is for tests in namespaces, and its service must not start on a machine that had none
keep_idle() {
	local unit=/etc/systemd/system/$2
	[[ -e /var/lib/dpkg/info/$1.list || -e $unit ]] || {
		mkdir -p "${unit%/*}"
		ln -s /dev/null "$unit"
	}
}

# apt_install PACKAGE...: as root
apt_install() {
	apt-get update -q || true # a broken third-party source is not our business
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

# rust-toolchain.toml names a version, which rustup installs. Where that is switched off, the default
# toolchain does if it is of that version.
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

# target_of ARCHITECTURE: what Rust calls it, of what runs on nodes and in images: static
target_of() {
	case $1 in
	amd64) echo x86_64-unknown-linux-musl ;;
	arm64) echo aarch64-unknown-linux-musl ;;
	*)
		echo "$0: the architecture is amd64 or arm64, not '$1'" >&2
		exit 2
		;;
	esac
}
# shellcheck disable=SC2034 # of those that source this
TARGET=$(target_of amd64)

# rust_target TARGET
rust_target() {
	rustup target list --installed | grep -qx "$1" || rustup target add "$1"
}

# What builds for arm64 beside Rust: the compiler of ring's C and assembler, and the headers of a C library, which they
# include. Rust's own linker links, and its own musl is linked in.
arm64_compiler() {
	aarch64-linux-gnu-gcc -fsyntax-only -x c - <<<'#include <stdint.h>' 2>/dev/null || {
		require_root
		apt_install gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	}
}

# arm64_environment: in which cargo builds for arm64
arm64_environment() {
	export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
	export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
}

# What tests arm64's programs on amd64: the emulator of one process, which needs no binfmt_misc of the kernel; what a
# runtime reads images by; and the compiler, whose headers include the kernel's.
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

# have_go VERSION: there is a Go of this version or a later one; none is downloaded for a go.mod
have_go() {
	local found
	found=$(cd / && go env GOVERSION 2>/dev/null) || return 1
	printf '%s\n' "$1" "${found#go}" | sort -VC
}

# The Go that is downloaded where there is none, or an old one: Debian 12's is old, and can download this as a module,
# whose checksum it holds against Go's own list.
GO=1.26.8

# go_toolchain: Go 1.24 or later, which builds Kubernetes' own programs. Without one, those that need it say so.
go_toolchain() {
	local directory
	! have_go 1.24 || return 0
	command -v go >/dev/null || {
		apt_install golang-go || return 0
	}
	directory=$(cd / && GOWORK=off timeout 600 go mod download -json "golang.org/toolchain@v0.0.1-go$GO.linux-amd64" |
		jq -r .Dir) || return 0
	# a module's files come without the right to run
	chmod +x "$directory"/bin/* "$directory"/pkg/tool/*/*
	export PATH=$directory/bin:$PATH GOTOOLCHAIN=local
}

# have_go_modules DIRECTORY: what the Go program there is made of is here, or can be downloaded
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
		echo "$0: needs root: it makes network namespaces and installs what is missing" >&2
		exit 1
	}
}
