# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# steps.sh - runs long steps, and shows the elapsed time. To be sourced.

# step NAME COMMAND...: runs COMMAND, whose output goes to a log. Meanwhile shows the elapsed time: on a terminal every
# second, otherwise in a line every 30 s. If COMMAND fails, prints the last 100 lines of the log, and ends the script
# with COMMAND's exit status.
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
			printf '%-44s %4d s, still running\n' "$name" $((SECONDS - start))
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
