# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# programs.sh - the test programs: compiled once, with all features, and found by name. To be sourced
# in the root of the tree.

# Programs that cargo made: a line for each with its package's directory, its name (a library's tests
# have the name of the library) and its path.
PROGRAMS=${CARGO_TARGET_DIR:-target}/test-programs

# Programs that run in the lab.
LAB='integration/lab_.*|rdma-netns/rdma'

# compile_programs [ARGUMENT...]: compiles by cargo with the ARGUMENTs; default: all programs
compile_programs() {
	local messages
	(($#)) || set -- --workspace --all-features
	messages=$(mktemp)
	# the release binaries, which are linked one by one, go first: both end at the same time then
	nice cargo test --locked "$@" --no-run --message-format=json-render-diagnostics >"$messages" || {
		rm -f "$messages"
		return 1
	}
	jq -r --arg root "$PWD/" 'select(.reason == "compiler-artifact" and .profile.test and .executable)
		| [(.manifest_path | ltrimstr($root) | rtrimstr("/Cargo.toml")), .target.name, .executable] | @tsv' \
		"$messages" >"$PROGRAMS"
	rm -f "$messages"
}

# programs PATTERN: DIRECTORY=PATH of each program whose directory/name PATTERN describes
programs() {
	awk -F '\t' -v pattern="^($1)\$" '$1 "/" $2 ~ pattern { print $1 "=" $3 }' "$PROGRAMS"
}

# both PATTERN PATTERN: of the programs that both describe; without: that the first one does, and the
# second one does not
both() { programs "$1" | grep -Fx -f <(programs "$2") || true; }
without() { programs "$1" | grep -Fxv -f <(programs "$2") || true; }

# lab_programs_with_test WORD: DIRECTORY/NAME of the lab's programs with a test whose name contains WORD
lab_programs_with_test() {
	local directory name path
	while IFS=$'\t' read -r directory name path; do
		[[ $directory/$name =~ ^($LAB)$ ]] || continue
		[[ $("$path" --list --format terse "$1") != *": test"* ]] || echo "$directory/$name"
	done <"$PROGRAMS"
}
