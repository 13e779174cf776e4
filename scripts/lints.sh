# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# lints.sh - functions that check sources, scripts, pages and binaries. To be sourced in the root of the tree.

SHELL_FILES=(.ci/run scripts/* integration/lab/setup integration/lab/vm integration/lab/pair integration/lab/under-systemd integration/lab/guest integration/lab/initramfs-init
	integration/lab/images integration/lab/kernel integration/lab/*.sh integration/kubernetes/build integration/kubernetes/certificates
	integration/coredns/build integration/device-metadata/build integration/helm/build integration/nfd/build
	integration/release/build integration/runtimes/build integration/vale/build
	integration/prometheus/fetch integration/browser/fetch)

formatting() { cargo fmt --all --check; }
lints() { nice cargo clippy --locked --workspace --all-targets --all-features -- -D warnings; }
documentation() { RUSTDOCFLAGS="-D warnings" nice cargo doc --locked --workspace --all-features --no-deps --document-private-items; }
shell_lints() {
	local files
	mapfile -t files < <(printf '%s\n' "${SHELL_FILES[@]}" | grep -v '\.py$')
	shellcheck -x -P SCRIPTDIR:. "${files[@]}"
}
links() { scripts/links.py; }

# prose: checks pages, changelog, and comments of sources and configuration by the rules of docs/style.md that Vale
# can check
prose() {
	local vale files
	vale=$(integration/vale/build)
	mapfile -t files < <(git ls-files '*.md' '*.rs' 'conf/*.yaml')
	"$vale" --config integration/vale/vale.ini --output line "${files[@]}"
}

# workflows: checks .github's workflows by the syntax that GitHub documents, and their commands with shellcheck
workflows() {
	"$(integration/release/build actionlint)" -color=false
}

# lean_binaries: checks that the CNI binaries, which must start within a millisecond, contain no crate that only a daemon
# needs. rdma-cni needs crates for gRPC over a Unix socket with one thread, because it queries kubelet. rdma-ipam
# queries no other program. Also checks that the three binaries are small and static.
lean_binaries() {
	lean_binary rdma-cni 'tokio feature "(rt-multi-thread|full|process|signal|fs)"' &&
		lean_binary rdma-ipam '(tokio|tonic|hyper|h2) ' &&
		static_binary rdma-device-plugin 11
}

# lean_binary NAME PATTERN: checks that the binary contains no crate that CNI binaries must not have, and no crate or
# feature that matches PATTERN, and that the binary is small and static
lean_binary() {
	local binary=$1 heavy
	heavy=$(cargo tree --locked -p "$binary" -e normal,features --prefix none |
		grep -E "^((rdma-sys|openssl|native-tls|rustls|tokio-rustls|ring|aws-lc-rs|clap) |$2)" | sort -u || true)
	[[ -z $heavy ]] || {
		echo "$binary must not depend on: $heavy"
		return 1
	}
	static_binary "$binary" 4
}

# static_binary NAME MB: checks that the binary has at most MB megabytes and no symbols, and needs no libraries of
# the node
static_binary() {
	local binary=$1 most=$2 size
	size=$(stat -c %s "dist/$binary")
	((size <= most * 1000 * 1000)) || {
		echo "dist/$binary has $size bytes, more than $most MB"
		return 1
	}
	[[ $(readelf -S "dist/$binary") != *.symtab* ]] || {
		echo "dist/$binary has symbols: set strip in Cargo.toml's profile"
		return 1
	}
	# a static (position-independent) executable has no interpreter
	! readelf -l "dist/$binary" | grep -q INTERP
}

# license_headers: checks that each Rust source begins with its license as an SPDX identifier
license_headers() {
	local file line without=()
	while IFS= read -r file; do
		read -r line <"$file"
		[[ $line == '// SPDX-License-Identifier: Apache-2.0' ]] || without+=("$file")
	done < <(git ls-files '*.rs')
	((${#without[@]} == 0)) || {
		printf '%s does not begin with its licence (SPDX-License-Identifier)\n' "${without[@]}"
		return 1
	}
}
