# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# steps.sh - runs each step of setup and kernel once for each key, and reports its progress. To be sourced, after
# cache.sh.

say() { echo "lab: $*" >&2; }

# since TIME: prints the whole seconds since TIME
since() { echo $((EPOCHSECONDS - $1)); }

# watch PID TITLE LOG: prints the elapsed seconds of a running step: on a terminal in one line with LOG's last line,
# otherwise every ten seconds
watch() {
	local pid=$1 title=$2 log=$3 start=$EPOCHSECONDS last=0 tick elapsed
	exec {tick}<> <(:) # 'read -t' from this descriptor sleeps without a new process
	while kill -0 "$pid" 2>/dev/null; do
		read -rt 0.2 -u "$tick" || true
		elapsed=$(since "$start")
		((elapsed > last)) || continue
		if [[ -t 2 ]]; then
			printf '\r\e[Klab: %s: %d s  %.60s' "$title" "$elapsed" "$(tail -n 1 "$log" | tr -d '\r')" >&2
		elif ((elapsed % 10 == 0)); then
			say "$title: $elapsed s, still running"
		fi
		last=$elapsed
	done
	exec {tick}>&-
	[[ ! -t 2 ]] || printf '\r\e[K' >&2
}

# step NAME KEY FUNCTION TITLE: runs FUNCTION KEY, unless the last run of the step succeeded with the same KEY
step() {
	local stamp=$CACHE/stamp/$1 log=$CACHE/log/$1 start=$EPOCHSECONDS
	if [[ -f $stamp && $(<"$stamp") == "$2" ]]; then
		say "$1: up to date"
		return
	fi
	rm -f "$stamp"
	[[ -t 2 ]] || say "$1: $4"
	# in the background, because 'if' and '||' would switch off -e in the function. The lock's
	# descriptor is closed, because a daemon that the function starts would keep the lock.
	("$3" "$2") >"$log" 2>&1 </dev/null {LOCK}>&- &
	watch $! "$1: $4" "$log"
	wait $! || {
		tail -n 25 "$log" >&2
		die "step '$1' ($4) failed after $(since "$start") s, its output is in $log"
	}
	printf '%s' "$2" >"$stamp"
	say "$1: done in $(since "$start") s"
}
