# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# jobs.sh - runs jobs in parallel: a job starts when the jobs that it needs have succeeded, its lane is free, and fewer
# than AT_ONCE jobs run. To be sourced. jobs.sh appends the output of all jobs to the caller's file COUNTED, from which
# the caller counts tests.

JOBS=() # names of the jobs. Of several jobs that can start, the first starts
declare -A JOB_LANE JOB_NEEDS JOB_COMMAND JOB_STATE JOB_PID JOB_START LANE_FREE RUNNING_JOBS=()
JOB_LOGS=$(mktemp -d)
AT_ONCE=3    # highest number of running jobs, not counting jobs of the lane "idle"
HEARTBEAT=30 # run_jobs prints the running jobs when no job has ended for this many seconds
# A job writes its name to this pipe when it ends, because "wait -n" of bash 5.2 does not report a job that ended while
# the shell was busy.
mkfifo "$JOB_LOGS/ended"
exec {ENDED}<>"$JOB_LOGS/ended"
TABLE=() # durations of jobs: "SECONDS CPU-SECONDS NAME"
FAILED_JOBS=0 FAILURES=''

# lane NAME NUMBER: defines a lane in which at most NUMBER jobs run at a time. AT_ONCE does not count jobs of the lane
# "idle", whose commands must set a low priority (nice).
lane() { LANE_FREE[$1]=$2; }

# lane_is_free NAME: succeeds if one more job of the lane can start
lane_is_free() {
	local name others=0
	((LANE_FREE[$1] > 0)) || return 1
	for name in "${RUNNING_JOBS[@]}"; do
		[[ ${JOB_LANE[$name]} == idle ]] || others=$((others + 1))
	done
	[[ $1 == idle ]] || ((others < AT_ONCE))
}

# job LANE NAME NEEDS COMMAND...: adds a job. NEEDS are names of jobs, one a line. If a job in NEEDS fails, this job
# fails. NAME is also a file name, so it contains no slash.
job() {
	local name=$2
	JOBS+=("$name")
	JOB_LANE[$name]=$1 JOB_NEEDS[$name]=$3 JOB_STATE[$name]=waiting
	JOB_COMMAND[$name]=$(printf '%q ' "${@:4}")
}

# run_jobs: runs all jobs, and waits for their ends
run_jobs() {
	local name status
	while :; do
		for name in "${JOBS[@]}"; do
			[[ ${JOB_STATE[$name]} == waiting ]] || continue
			case $(job_is_ready "$name") in
			no) continue ;;
			never) end_job "$name" 1 "not run: a job that it needs has failed" ;;
			yes)
				lane_is_free "${JOB_LANE[$name]}" || continue
				LANE_FREE[${JOB_LANE[$name]}]=$((LANE_FREE[${JOB_LANE[$name]}] - 1))
				JOB_STATE[$name]=running JOB_START[$name]=$SECONDS
				echo "$(clock) started: $name"
				set -m # gives the job its own process group
				run_job "$name" &
				set +m
				JOB_PID[$name]=$! RUNNING_JOBS[$!]=$name
				;;
			esac
		done
		((${#RUNNING_JOBS[@]})) || break
		wait_for_end
		name=$JOB_ENDED
		status=0
		wait "${JOB_PID[$name]}" || status=$?
		unset "RUNNING_JOBS[${JOB_PID[$name]}]"
		LANE_FREE[${JOB_LANE[$name]}]=$((LANE_FREE[${JOB_LANE[$name]}] + 1))
		end_job "$name" "$status"
	done
	JOBS=()
}

# wait_for_end: waits until a job has ended, and sets JOB_ENDED to its name
wait_for_end() {
	local pid
	while :; do
		if read -r -t "$HEARTBEAT" -u "$ENDED" JOB_ENDED; then
			[[ ${JOB_STATE[$JOB_ENDED]-} != running ]] || return 0
			continue
		fi
		for pid in "${!RUNNING_JOBS[@]}"; do
			kill -0 "$pid" 2>/dev/null && continue
			JOB_ENDED=${RUNNING_JOBS[$pid]} # the job was killed, or is about to write its name
			return 0
		done
		still_running
	done
}

# still_running: prints the running jobs with the time since their start
still_running() {
	local name line=''
	for name in "${JOBS[@]}"; do
		[[ ${JOB_STATE[$name]} != running ]] || line+=", $name $((SECONDS - JOB_START[$name])) s"
	done
	echo "$(clock) still running: ${line#, }"
}

# end_jobs: ends the running jobs, and the processes that they have started
end_jobs() {
	local pid
	for pid in "${!RUNNING_JOBS[@]}"; do
		kill -TERM -- "-$pid" 2>/dev/null || true
	done
	rm -rf "$JOB_LOGS"
}

clock() { printf '%3d:%02d' $((SECONDS / 60)) $((SECONDS % 60)); }

# job_is_ready NAME: prints yes, no (a job that NAME needs has not ended), or never (a job that NAME needs has failed)
job_is_ready() {
	local need answer=yes
	while IFS= read -r need; do
		case ${JOB_STATE[${need:-$1}]} in
		failed) answer=never ;;
		running) [[ $answer == never ]] || answer=no ;;
		waiting) [[ -z $need || $answer == never ]] || answer=no ;;
		esac
	done <<<"${JOB_NEEDS[$1]}"
	echo "$answer"
}

# run_job NAME: runs the job's command, stores its output, its duration and its processor time in seconds, and reports
# the job's end
run_job() {
	local name=$1 start=$SECONDS status=0 minutes seconds cpu=0
	# in the background, because '||' would switch off -e in the job's command
	(
		set -e
		eval "${JOB_COMMAND[$name]}"
	) >"$JOB_LOGS/$name" 2>&1 </dev/null &
	wait $! || status=$?
	# the second line has user and system time of the job's processes: 1m2.345s 0m1.234s
	times >"$JOB_LOGS/$name.time"
	while IFS=m read -r minutes seconds; do
		cpu=$((cpu + minutes * 60 + ${seconds%%.*}))
	done < <(sed -n '2s/ /\n/p' "$JOB_LOGS/$name.time")
	echo "$((SECONDS - start)) $cpu" >"$JOB_LOGS/$name.time"
	echo "$name" >&"$ENDED"
	return "$status"
}

# end_job NAME STATUS [WHY]: prints the job's output, and records its result. WHY replaces the output of a job that did
# not run
end_job() {
	local name=$1 status=$2 real=0 cpu=0
	[[ -z ${3-} ]] || echo "$3" >"$JOB_LOGS/$name"
	[[ ! -s $JOB_LOGS/$name.time ]] || read -r real cpu <"$JOB_LOGS/$name.time"
	JOB_STATE[$name]='done'
	echo "--- $name"
	cat "$JOB_LOGS/$name"
	cat "$JOB_LOGS/$name" >>"$COUNTED"
	if ((status != 0)); then
		JOB_STATE[$name]=failed
		FAILED_JOBS=$((FAILED_JOBS + 1))
		FAILURES+="$(why_it_failed "$name")"$'\n'
	fi
	echo "$(clock) ${JOB_STATE[$name]}: $name, $real s"
	TABLE+=("$real $cpu $name$([[ $status == 0 ]] || echo ', failed')")
}

# why_it_failed NAME: prints the output of the job's failed tests, and the end of its output
why_it_failed() {
	local tests
	echo "--- $1, failed:"
	tests=$(sed -n '/^failures:$/,/^test result:/p' "$JOB_LOGS/$1")
	[[ -z $tests ]] || head -n 60 <<<"$tests"
	tail -n "$([[ -z $tests ]] && echo 40 || echo 10)" "$JOB_LOGS/$1"
}

# print_failures: prints the reasons of failed jobs again, because a long run prints much after a failure
print_failures() { [[ -z $FAILURES ]] || printf '\n%s' "$FAILURES"; }

# print_table: prints duration and processor time of each job
print_table() {
	local row real cpu name
	echo
	printf '%8s %8s\n' seconds 'of CPU'
	for row in "${TABLE[@]}"; do
		read -r real cpu name <<<"$row"
		printf '%8d %8d  %s\n' "$real" "$cpu" "$name"
	done
	printf '%8d %8s  %s\n' "$SECONDS" '' 'in all'
}
