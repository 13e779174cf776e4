// SPDX-License-Identifier: Apache-2.0
//! `fault-injector [--report=FILE] [FAULT…] -- PROGRAM [ARGUMENT…]` runs a program with faults at some of its system
//! calls (`integration::tracer`), and ends with the program's exit status. It reports the calls at which a fault is
//! possible, to FILE or on standard error. A FAULT is `--kill=N`, `--kill-after=N`, `--kill-before-send=N` or
//! `--fail=N=ERRNO`.

use integration::tracer::{self, Arguments, Report, Traced};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::{Signal, raise},
    },
};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let Arguments {
        report: file,
        faults,
        program,
    } = match Arguments::read(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("fault-injector: {error}");
            return ExitCode::from(2);
        }
    };
    // this process and the program end with the test that has started this process
    let _ = prctl::set_pdeathsig(Signal::SIGKILL);
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    let done = tracer::run(command, &faults).and_then(|(ended, report)| {
        match file {
            Some(file) => tracer::write(&report, &file)?,
            None => print(&report),
        }
        Ok(ended)
    });
    match done {
        Err(error) => {
            eprintln!("fault-injector: {}: {error}", program[0]);
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
