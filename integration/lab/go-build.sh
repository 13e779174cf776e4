# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# go-build.sh - shared by the scripts `build` of integration/kubernetes, helm, release, runtimes and others: each builds Go
# programs in the lab's cache, and with --check as its first argument only reports whether it can. Each of them sources this
# file in its own directory. The argument --check is removed.

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

# go_program NAME PACKAGE [FLAG...]: builds PACKAGE of the module in this directory as a static program, once for each
# main.go, go.mod, go.sum and build. Prints its path.
go_program() {
	local name=$1 package=$2 of=${PWD##*/} reason='' key program
	key=$(find . -maxdepth 1 -name main.go -o -maxdepth 1 -name 'go.*' -o -maxdepth 1 -name build | sort | xargs cat |
		sha256sum | cut -c 1-16)
	program=$CACHE/$of/$key/$name
	[[ -x $program ]] || reason=$(lacking "$name (integration/$of)" have_go_modules .)
	go_on_unless "$reason"
	if [[ ! -x $program ]]; then
		mkdir -p "${program%/*}"
		exec {LOCK}>"$CACHE/$of/lock"
		flock "$LOCK"
		[[ -x $program ]] || { # unless another one built it meanwhile
			GOWORK=off CGO_ENABLED=${CGO_ENABLED-0} nice -n 19 go build -mod=readonly -buildvcs=false -trimpath \
				-ldflags "-s -w" "${@:3}" -o "$program.new" "$package" 2>"$program.log" || {
				cat "$program.log" >&2
				exit 1
			}
			mv "$program.new" "$program"
		}
	fi
	echo "$program"
}
