// SPDX-License-Identifier: Apache-2.0
//! One run of another program, with a deadline.

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

/// Largest output of a program, bytes. A CNI result has some kilobytes.
const LARGEST: usize = 1024 * 1024;

/// Runs `program` with `input` on its standard input. Returns its exit status and standard output. Kills the program at
/// `deadline`. The kernel also kills the program when the calling thread ends. Otherwise an IPAM ADD could outlive the
/// DEL of its pod, and would then lease an address to a deleted pod.
///
/// # Errors
/// `TimedOut`: the program did not end, or did not close standard output, before `deadline`. `InvalidData`: the program
/// wrote more than 1 MiB. Other kinds: a system call fails.
pub fn until(
    deadline: Instant,
    mut program: Command,
    input: &[u8],
) -> io::Result<(ExitStatus, Vec<u8>)> {
    program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    // SAFETY: prctl is one system call, which a forked child may make before exec
    unsafe {
        program.pre_exec(|| Ok(prctl::set_pdeathsig(Signal::SIGKILL)?));
    }
    let mut child = program.spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let input = input.to_vec();
    // the thread is not joined: it may never end, because a child of the program can keep standard input open without
    // reading
    let writer = thread::Builder::new().spawn(move || {
        // writing fails if the program ends without reading: the program's output has the reason
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

/// Reads `stdout` to the end, at most until `deadline`, and at most [`LARGEST`] bytes.
fn read(stdout: Option<ChildStdout>, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut output = vec![];
    let Some(mut stdout) = stdout else {
        return Ok(output);
    };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // while a program keeps writing, poll() never reports a timeout
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
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
            length if output.len() + length > LARGEST => {
                let problem =
                    "it wrote more than 1 MiB to standard output; correct or replace this program";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            length => output.extend_from_slice(&buffer[..length]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time limit for programs that do not end.
    const LIMIT: Duration = Duration::from_millis(300);

    /// Time limit for programs that end by themselves, even on a busy machine.
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Runs `script` with `input`, and returns its outcome and its duration.
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
        // poll() rounds its timeout to milliseconds
        let limit = LIMIT - Duration::from_millis(1);
        assert!(
            took >= limit && took < LIMIT * 50,
            "{script} took {took:?} of {LIMIT:?}"
        );
    }

    /// Returns more than 64 KiB, the capacity of a pipe.
    fn large() -> Vec<u8> {
        vec![b' '; 1 << 20]
    }

    #[test]
    fn output_and_exit_status_are_reported() {
        let (ended, _) = run("cat; exit 3", b"all of it", TIMEOUT);
        let (status, output) = ended.unwrap();
        assert_eq!((status.code(), &*output), (Some(3), &b"all of it"[..]));
        let (ended, _) = run("exec cat", &large(), TIMEOUT);
        assert_eq!(ended.unwrap().1.len(), large().len());
    }

    #[test]
    fn one_that_reads_nothing_is_reported_all_the_same() {
        let (ended, _) = run("echo no; exit 1", &large(), TIMEOUT);
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

    /// Output is ready at the deadline, as that of a program that never stops writing.
    #[test]
    fn output_after_the_deadline_is_not_read() {
        let mut program = Command::new("/bin/sh");
        program.args(["-c", "echo late"]).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        child.wait().unwrap();
        let kind = read(child.stdout.take(), Instant::now()).unwrap_err();
        assert_eq!(kind.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn one_that_writes_too_much_is_ended() {
        let (ended, _) = run("exec head -c 64M /dev/zero", b"", TIMEOUT);
        let ended = ended.map(|(_, output)| output.len());
        let error = ended.expect_err("it writes 64 MiB");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!(error.to_string().contains("1 MiB"), "{error}");
    }

    /// The shell's child inherits standard input and outlives the shell.
    #[test]
    fn a_shell_that_waits_for_another_program_is_ended() {
        must_time_out("sleep 20; true", &large());
        must_time_out("exec >&-; sleep 20; true", &large());
    }
}
