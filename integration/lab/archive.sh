# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# archive.sh - Debian's archive, by apt with lists of the cache's own: the host's stay as they are. To be sourced,
# after cache.sh.

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# Where apt's lists are: Debian 12's, and in APT-13 Debian 13's, from which nothing is
# installed.
APT=$CACHE/apt

# apt with the sources, lists and configuration of the cache, not the host's
private_apt() {
	local tool=$1
	shift
	"$tool" -q -o Dir::Etc::SourceList="$APT/sources.list" -o Dir::Etc::SourceParts=- \
		-o Dir::Etc::Preferences=- -o Dir::Etc::PreferencesParts=- \
		-o Dir::State::Lists="$APT/lists" -o Dir::Cache="$APT/cache" \
		-o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User="$(id -un)" "$@"
}

# mirror CODENAME DIRECTORY: where the suite comes from, as the host's apt is set up
mirror() {
	local filter
	[[ -z ${RDMA_LAB_MIRROR-} ]] || { echo "${RDMA_LAB_MIRROR%/}/$2"; return; }
	# 'Release' is the word in sources.list, 'Codename' what it stands for; the latter
	# is known only after an update
	for filter in "Release: $1" "Codename: $1"; do
		# shellcheck disable=SC2016  # apt replaces it
		apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "$filter" | head -n 1 | grep . && return
	done
	die "apt on this machine has no source for $1: add one, or set RDMA_LAB_MIRROR to a Debian mirror"
}

# get_lists SUITE...: into APT
get_lists() {
	mkdir -p "$APT/lists/partial" "$APT/cache/archives/partial"
	printf "deb [signed-by=$KEYRING] %s main\n" "$@" >"$APT/sources.list"
	private_apt apt-get update
}

# newest PACKAGE VERSION-PATTERN: the newest version that matches
newest() {
	private_apt apt-cache show "$1" | sed -n 's/^Version: //p' | grep -E "$2" | sort -V | tail -n 1
}

# fetch DIRECTORY PACKAGE...: download and unpack into DIRECTORY/root; the files of
# linux-source stay packed
fetch() {
	local into=$1 deb
	shift
	mkdir -p "$into/deb"
	(cd "$into/deb" && private_apt apt-get download "$@")
	for deb in "$into"/deb/*.deb; do
		[[ $deb == */linux-source-* ]] || dpkg -x "$deb" "$into/root"
	done
}
