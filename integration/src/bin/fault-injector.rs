// SPDX-License-Identifier: Apache-2.0
//! `fault-injector [--report=FILE] [FAULT…] -- PROGRAM [ARGUMENT…]` runs a program with faults at some of its system
//! calls (`integration::tracer`), and ends with the program's exit status. It reports the calls at which a fault is
//! possible, to FILE or on standard error. A FAULT is `--kill=N`, `--kill-after=N`, `--kill-before-send=N`,
//! `--kill-before=CALL=N` or `--fail=N=ERRNO`.
//!
//! `--attach=PID` instead of a program: attaches to a running process, and writes a line to standard output when it
//! traces all threads. SIGTERM makes it release the process, and end.

use integration::tracer::{self, Fault, Report, Traced};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, raise},
    },
    unistd::Pid,
};
use std::{
    fs, io,
    path::PathBuf,
    process::{Command, ExitCode},
};

fn main() -> ExitCode {
    let arguments = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("fault-injector: {error}");
            return ExitCode::from(2);
        }
    };
    // this process and the program end with the test that has started this process
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    match arguments.trace() {
        Err(error) => {
            eprintln!("fault-injector: {}: {error}", arguments.program.join(" "));
            ExitCode::from(125)
        }
        Ok(Traced::Exited(code)) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Ok(Traced::Killed(signal)) => {
            let _ = raise(signal);
            // 128 means that a signal ended the program, but not this process
            ExitCode::from(128)
        }
    }
}

/// Command line.
#[derive(Default)]
struct Arguments {
    /// File of the report. `None`: standard error, as text.
    report: Option<PathBuf>,
    /// Faults of one run.
    faults: Vec<Fault>,
    /// The running process to trace.
    process: Option<Pid>,
    /// The program and its arguments. Empty if `process` is set, and only then.
    program: Vec<String>,
}

impl Arguments {
    /// Reads the arguments. The error is a sentence about the first wrong argument, or about the missing program.
    fn read(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = Self::default();
        for word in words.by_ref() {
            if word == "--" {
                break;
            }
            let option = word.strip_prefix("--");
            let option = option.ok_or_else(|| format!("{word:?}: the program comes after a --"))?;
            match option.split_once('=') {
                Some(("report", path)) => arguments.report = Some(PathBuf::from(path)),
                Some(("attach", pid)) => {
                    let pid = pid.parse().map_err(|_| format!("{pid:?} is no process"))?;
                    arguments.process = Some(Pid::from_raw(pid));
                }
                _ => arguments.faults.push(option.parse()?),
            }
        }
        arguments.program.extend(words);
        match arguments.process.is_some() == arguments.program.is_empty() {
            true => Ok(arguments),
            false => Err("name either a process, by --attach, or a program, after a --".to_owned()),
        }
    }

    /// Traces the program or process to its end, and reports.
    fn trace(&self) -> io::Result<Traced> {
        let (ended, report) = match self.process {
            Some(process) => tracer::attach(process, &self.faults, || println!("attached"))?,
            None => {
                let mut command = Command::new(&self.program[0]);
                command.args(&self.program[1..]);
                tracer::run(command, &self.faults)?
            }
        };
        match &self.report {
            Some(file) => fs::write(file, serde_json::to_vec(&report)?)?,
            None => print(&report),
        }
        Ok(ended)
    }
}

fn print(report: &Report) {
    let mut changes = 0;
    for (number, point) in (1..).zip(&report.points) {
        changes += usize::from(point.changes);
        let change = if point.changes {
            format!("change {changes}")
        } else {
            String::new()
        };
        let errors: Vec<String> = point
            .errors
            .iter()
            .map(|errno| format!("{:?}", Errno::from_raw(*errno)))
            .collect();
        eprintln!(
            "{number:4} {change:10} {:16} {} [{}]",
            point.call,
            point.what,
            errors.join(" ")
        );
    }
    if let Some(point) = &report.hit {
        eprintln!("the fault was at {} {}", point.call, point.what);
    }
}
