# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# go-build.sh - functions for the scripts `build` of integration/kubernetes, helm, release, runtimes and others, which build
# Go programs in the lab's cache. A script sources this file in its own directory. With --check as its first argument, which
# this file removes, a script only reports whether it can build.

# shellcheck source=integration/lab/cache.sh
. ../lab/cache.sh
# shellcheck source=scripts/prerequisites.sh
. ../../scripts/prerequisites.sh

OLDEST_GO=1.24 # if go.mod requires a later version, Go downloads that version

check=0
[[ ${1-} != --check ]] || {
	check=1
	shift
}

# usage: prints the head comment of the script, and ends the script with status 2
usage() {
	sed -n '3,/^set/{/^#/s/^# \{0,1\}//p}' build >&2
	exit 2
}

# lacking NAME DOWNLOAD...: prints the reason if NAME cannot be built: Go is missing, or the command DOWNLOAD cannot
# download the modules
lacking() {
	if ! have_go "$OLDEST_GO"; then
		echo "cannot build $1: there is no Go $OLDEST_GO or later here (https://go.dev/dl)"
	elif ! "${@:2}" >&2; then
		echo "cannot build $1: its Go modules cannot be downloaded (go env GOPROXY)"
	fi
}

# go_on_unless REASON: ends the script with an error if REASON is not empty. With --check, always ends the script: with
# status 0 if REASON is empty, otherwise with status 1 after printing REASON.
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

# go_program NAME PACKAGE [FLAG...]: builds PACKAGE of the module in this directory as the program NAME in the cache, by
# `go build FLAG...`, without C unless CGO_ENABLED=1. Builds again only after a change of main.go, go.mod, go.sum or the
# script build. Prints the program's path.
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
		[[ -x $program ]] || { # unless another process has built the program meanwhile
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
