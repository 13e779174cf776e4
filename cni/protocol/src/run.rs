// SPDX-License-Identifier: Apache-2.0
//! One run of a program, with an end: it does not outlive this one, nor its time.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{prctl, signal::Signal},
};
use std::{
    io::{self, Read, Write},
    os::{fd::AsFd, unix::process::CommandExt},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const POLL: Duration = Duration::from_micros(500);

/// Runs `program` with `input`: how it ended, and what it said on standard output. One that has
/// not ended by `deadline` is killed. It is also killed when this process is: an ADD that goes on
/// after its DEL would hold an address for nobody.
///
/// # Errors
/// It cannot be run, or has not ended in time ([`io::ErrorKind::TimedOut`]).
pub fn until(
    deadline: Instant,
    mut program: Command,
    input: &[u8],
) -> io::Result<(ExitStatus, Vec<u8>)> {
    program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    // SAFETY: prctl is one system call, which a forked child may make before it is another program
    unsafe {
        program.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
    }
    let mut child = program.spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let input = input.to_vec();
    // not waited for: what the plugin has started can keep its standard input open, and not read
    let writer = thread::Builder::new().spawn(move || {
        // a plugin that ends without reading has its reason, told by its answer
        let _ = stdin.map(|mut stdin| stdin.write_all(&input));
    });
    let ended = writer
        .and_then(|_| read(stdout, deadline))
        .and_then(|output| Ok((wait(&mut child, deadline)?, output)));
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ended
}

fn wait(child: &mut Child, deadline: Instant) -> io::Result<ExitStatus> {
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            None => thread::sleep(POLL),
        }
    }
}

/// Reads standard output to its end.
fn read(stdout: Option<ChildStdout>, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut output = vec![];
    let Some(mut stdout) = stdout else {
        return Ok(output);
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut ready = [PollFd::new(stdout.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, timeout) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut buffer = [0; 4096];
        match stdout.read(&mut buffer)? {
            0 => return Ok(output),
            length => output.extend_from_slice(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For what hangs.
    const LIMIT: Duration = Duration::from_millis(300);

    /// For what ends by itself, on a machine that may be busy.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// `script` ran with `input`: its outcome, and how long that took.
    fn run(
        script: &str,
        input: &[u8],
        limit: Duration,
    ) -> (io::Result<(ExitStatus, Vec<u8>)>, Duration) {
        let mut program = Command::new("/bin/sh");
        program.args(["-c", script]);
        let started = Instant::now();
        let ended = until(started + limit, program, input);
        (ended, started.elapsed())
    }

    #[track_caller]
    fn must_time_out(script: &str, input: &[u8]) {
        let (ended, took) = run(script, input, LIMIT);
        let kind = ended.expect_err("it does not end by itself").kind();
        assert_eq!(kind, io::ErrorKind::TimedOut, "{script}");
        // poll() counts in milliseconds
        let limit = LIMIT - Duration::from_millis(1);
        assert!(
            took >= limit && took < LIMIT * 50,
            "{script} took {took:?} of {LIMIT:?}"
        );
    }

    /// More than a pipe takes, which is 64 KiB.
    fn large() -> Vec<u8> {
        vec![b' '; 1 << 20]
    }

    #[test]
    fn what_it_says_and_how_it_ends_is_told() {
        let (ended, _) = run("cat; exit 3", b"all of it", PATIENCE);
        let (status, output) = ended.unwrap();
        assert_eq!((status.code(), &*output), (Some(3), &b"all of it"[..]));
        let (ended, _) = run("exec cat", &large(), PATIENCE);
        assert_eq!(ended.unwrap().1.len(), large().len());
    }

    #[test]
    fn one_that_reads_nothing_is_told_all_the_same() {
        let (ended, _) = run("echo no; exit 1", &large(), PATIENCE);
        let (status, output) = ended.unwrap();
        assert_eq!((status.code(), &*output), (Some(1), &b"no\n"[..]));
    }

    #[test]
    fn one_that_hangs_is_ended() {
        must_time_out("exec sleep 20", b"{}");
        must_time_out("exec >&-; exec sleep 20", b"{}");
        must_time_out("exec sleep 20", &large());
        must_time_out("exec >&-; exec sleep 20", &large());
    }

    /// Its own child has its standard input, and lives on.
    #[test]
    fn a_shell_that_waits_for_another_program_is_ended() {
        must_time_out("sleep 20; true", &large());
        must_time_out("exec >&-; sleep 20; true", &large());
    }
}
