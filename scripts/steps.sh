# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# steps.sh - runs long steps, and shows progress and elapsed time. To be sourced.

# step NAME COMMAND...: runs COMMAND. Writes its output to a log, and prints the log if
# COMMAND fails. While COMMAND runs, the terminal shows for how long.
step() {
	local name=$1 start=$SECONDS log status=0 pid
	shift
	log=$(mktemp)
	(set -e; "$@") >"$log" 2>&1 &
	pid=$!
	while kill -0 "$pid" 2>/dev/null; do
		if [[ -t 1 ]]; then
			printf '\r%-44s %4d s ' "$name" $((SECONDS - start))
		elif ((SECONDS > start && (SECONDS - start) % 30 == 0)); then
			printf '%-44s %4d s, still at it\n' "$name" $((SECONDS - start))
		fi
		sleep 1 &
		wait -n "$pid" $! || true
	done
	wait "$pid" || status=$?
	[[ ! -t 1 ]] || printf '\r'
	if ((status != 0)); then
		printf '%-44s %4d s, failed:\n' "$name" $((SECONDS - start))
		tail -n 100 "$log"
		rm -f "$log"
		exit "$status"
	fi
	printf '%-44s %4d s\n' "$name" $((SECONDS - start))
	rm -f "$log"
}
