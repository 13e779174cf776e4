# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# steps.sh - long steps with progress and elapsed time, for the other scripts. To be sourced.

# step NAME COMMAND...: run COMMAND, its output in a log that is shown if it fails; while it
# runs, a person sees for how long.
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
