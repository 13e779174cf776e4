# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# go-build.sh - what the scripts `build` of integration/kubernetes, helm, release, runtimes and vale share: each makes Go programs
# in the lab's cache, and with --check as its first argument only says whether it can. To be sourced by them, in
# their own directories; takes --check away.

# shellcheck source=integration/lab/cache.sh
. ../lab/cache.sh
# shellcheck source=scripts/prerequisites.sh
. ../../scripts/prerequisites.sh

OLDEST_GO=1.24 # a later one, where go.mod asks for it, is Go's own to get

check=0
[[ ${1-} != --check ]] || {
	check=1
	shift
}

# usage: the head of the script, and its end
usage() {
	sed -n '3,/^set/{/^#/s/^# \{0,1\}//p}' build >&2
	exit 2
}

# lacking NAME DOWNLOAD...: what is missing for NAME to be built, if something is: Go, or the modules, which the
# command DOWNLOAD gets
lacking() {
	if ! have_go "$OLDEST_GO"; then
		echo "$1 is not built, and there is no Go $OLDEST_GO or later"
	elif ! "${@:2}" >&2; then
		echo "$1 is not built, and Go's modules cannot be downloaded"
	fi
}

# go_on_unless REASON: ends the script where there is a REASON against it, and with --check in any case
go_on_unless() {
	if ((check)); then
		echo "$1"
		[[ -z $1 ]]
		exit
	fi
	[[ -z $1 ]] || {
		echo "build: $1" >&2
		exit 1
	}
}
