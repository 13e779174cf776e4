// SPDX-License-Identifier: Apache-2.0
//! `scripts/jobs.sh`, which runs the parts of `scripts/test`. The tests use invented jobs.

use std::process::Command;

/// Returns the output of the commands `jobs` and then of `run_jobs`, with two lanes and a report of running jobs every
/// second.
fn run(jobs: &str) -> String {
    let script = format!(
        "set -euo pipefail\n. scripts/jobs.sh\nHEARTBEAT=1\nCOUNTED=$(mktemp)\n\
         trap 'end_jobs; rm -f \"$COUNTED\"' EXIT\nlane a 2\nlane b 1\n{jobs}\nrun_jobs\n\
         echo \"failed: $FAILED_JOBS\"\n"
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .output()
        .expect("bash can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("it is text")
}

#[test]
fn running_jobs_are_reported_with_their_seconds() {
    let output = run("job a one '' sleep 3\njob b two '' sleep 3");
    let lines: Vec<_> = output
        .lines()
        .filter(|line| line.contains("still running"))
        .collect();
    assert!(!lines.is_empty(), "{output}");
    for line in lines {
        let (_, jobs) = line.split_once("still running: ").expect("a line of it");
        for job in jobs.split(", ") {
            let (name, seconds) = job.split_once(' ').expect("a name and seconds");
            assert!(["one", "two"].contains(&name), "{output}");
            let seconds: u64 = seconds.trim_end_matches(" s").parse().expect("seconds");
            assert!((1..10).contains(&seconds), "{output}");
        }
    }
}

#[test]
fn nothing_is_reported_of_short_jobs() {
    // with this interval, the job ends before the first report even on a busy machine
    let output = run("HEARTBEAT=20\njob a one '' true");
    assert!(!output.contains("still running"), "{output}");
}

/// A line about other jobs is printed between the outputs of two jobs, and never within an output.
#[test]
fn the_output_of_a_job_stays_together_and_its_failure_counts() {
    let output = run(
        "talks() { echo first; sleep 2; echo last; false; }\njob a talks '' talks\n\
         job a 'needs it' talks true\njob b other '' sleep 3",
    );
    assert!(output.contains("--- talks\nfirst\nlast\n"), "{output}");
    assert!(output.contains(" failed: talks, "), "{output}");
    assert!(output.contains(" failed: needs it, "), "{output}");
    assert!(output.contains(" done: other, "), "{output}");
    assert!(output.ends_with("failed: 2\n"), "{output}");
}

/// The script reports all jobs that end at the same time, whichever it waits for first.
#[test]
fn jobs_that_end_at_once_are_all_seen() {
    let output = run("job a one '' sleep 1\njob a two '' sleep 1\njob b three '' sleep 1");
    for name in ["one", "two", "three"] {
        assert!(output.contains(&format!(" done: {name}, ")), "{output}");
    }
}

/// Without `AT_ONCE`, the lanes a and b would run three jobs at the same time. A job of the lane "idle" does not count.
#[test]
fn no_more_jobs_run_at_once_than_the_machine_is_to_do() {
    let output = run(
        "lane idle 1\nAT_ONCE=2\njob idle least '' sleep 1\njob a one '' sleep 1\n\
         job a two '' sleep 1\njob b three '' true",
    );
    let place = |what: &str| {
        output
            .find(what)
            .unwrap_or_else(|| panic!("{what}: {output}"))
    };
    let third = place(" started: three");
    for name in ["least", "one", "two"] {
        assert!(place(&format!(" started: {name}")) < third, "{output}");
    }
    let done = ["one", "two"].map(|name| place(&format!(" done: {name}")));
    assert!(place(" started: two") < done[0], "{output}");
    assert!(done[0].min(done[1]) < third, "{output}");
}

#[test]
fn a_job_that_is_killed_has_failed() {
    let output = run("job a killed '' kill -KILL 0\njob b other '' sleep 3");
    assert!(output.contains(" failed: killed, "), "{output}");
    assert!(output.contains(" done: other, "), "{output}");
}

/// A reader who sees only the end of a long run learns why it failed: the output of the failed tests, and the last
/// lines.
#[test]
fn a_failed_jobs_reason_is_repeated_at_the_end() {
    let output = run(
        "tests() { printf '%s\\n' 'test one ... ok' failures: '---- two stdout ----' 'it is 3' \
         'test result: FAILED. 1 passed'; seq 30; false; }\njob a tests '' tests\n\
         breaks() { seq 100; echo 'it ended early'; false; }\njob a breaks '' breaks\n\
         job b other '' echo all is well\nrun_jobs\necho END\nprint_failures",
    );
    let (_, end) = output.split_once("END\n").expect("all of it");
    assert!(
        end.contains("--- tests, failed:\nfailures:\n---- two stdout ----\nit is 3\n"),
        "{end}"
    );
    assert!(end.contains("\n29\n30\n"), "{end}");
    assert!(end.contains("--- breaks, failed:\n62\n"), "{end}");
    assert!(end.contains("\n100\nit ended early\n"), "{end}");
    for left_out in ["test one", "all is well", "\n20\n"] {
        assert!(!end.contains(left_out), "{end}");
    }
}

#[test]
fn nothing_is_reported_again_if_nothing_failed() {
    let output = run("job a one '' true\nrun_jobs\necho END\nprint_failures");
    assert!(output.ends_with("END\nfailed: 0\n"), "{output}");
}
