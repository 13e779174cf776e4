# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# programs.sh - compiles the test programs once, with all features, and finds them by name. To be sourced in the root of
# the tree.

# File with a line for each test program: the package's directory, the program's name, and the program's path. The
# program with a library's unit tests has the library's name.
PROGRAMS=${CARGO_TARGET_DIR:-target}/test-programs

# Pattern of the programs that run in the lab.
LAB='integration/lab_.*|rdma-netns/rdma'

# compile_programs [ARGUMENT...]: compiles test programs by `cargo test --no-run ARGUMENT...` (default: all programs)
compile_programs() {
	local messages
	(($#)) || set -- --workspace --all-features
	messages=$(mktemp)
	# nice, because the simultaneous build of the release binaries takes longer: cargo links them one by one
	nice cargo test --locked "$@" --no-run --message-format=json-render-diagnostics >"$messages" || {
		rm -f "$messages"
		return 1
	}
	jq -r --arg root "$PWD/" 'select(.reason == "compiler-artifact" and .profile.test and .executable)
		| [(.manifest_path | ltrimstr($root) | rtrimstr("/Cargo.toml")), .target.name, .executable] | @tsv' \
		"$messages" >"$PROGRAMS"
	rm -f "$messages"
}

# programs PATTERN: prints DIRECTORY=PATH of each program whose directory/name matches PATTERN
programs() {
	awk -F '\t' -v pattern="^($1)\$" '$1 "/" $2 ~ pattern { print $1 "=" $3 }' "$PROGRAMS"
}

# both PATTERN PATTERN: prints the programs that match both patterns
# without PATTERN PATTERN: prints the programs that match the first pattern and not the second
both() { programs "$1" | grep -Fx -f <(programs "$2") || true; }
without() { programs "$1" | grep -Fxv -f <(programs "$2") || true; }

# lab_programs_with_test WORD: prints DIRECTORY/NAME of the lab's programs with a test whose name
# contains WORD
lab_programs_with_test() {
	local directory name path
	while IFS=$'\t' read -r directory name path; do
		[[ $directory/$name =~ ^($LAB)$ ]] || continue
		[[ $("$path" --list --format terse "$1") != *": test"* ]] || echo "$directory/$name"
	done <"$PROGRAMS"
}
