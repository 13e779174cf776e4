// SPDX-License-Identifier: Apache-2.0
//! The log on standard error, and in a file if the configuration names a file.

use crate::{Environment, conf::Log};
use conf_reader::one_line;
use nix::libc::O_NONBLOCK;
use std::{
    collections::BTreeSet,
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    sync::Mutex,
};

struct Both {
    file: File,
}

impl Write for Both {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(text)?;
        // a failed write, for example on a full disk, must not fail a pod's ADD
        let _ = self.file.write_all(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Starts logging. Each line begins with `program`, the process id and the context: verb, attachment, pod. A verb
/// repeats its steps while it waits, so a process logs each warning only once.
pub fn start(program: &'static str, settings: &Log, environment: &Environment) {
    let context = context(environment);
    let warnings = Mutex::new(BTreeSet::new());
    let mut builder = env_logger::Builder::new();
    builder
        .filter_level(settings.level)
        .format(move |out, record| {
            let head = format!("{program}[{}]: {context}", std::process::id());
            let line = line(&head, record.level(), record.args());
            let is_warning = record.level() == log::Level::Warn;
            if is_warning && warnings.lock().is_ok_and(|mut it| !it.insert(line.clone())) {
                return Ok(());
            }
            writeln!(out, "{line}")
        });
    let opened = settings.file.as_ref().map(|path| {
        OpenOptions::new()
            .append(true)
            .create(true)
            // without this flag, opening a named pipe without a reader would block
            .custom_flags(O_NONBLOCK)
            .open(path)
            .map_err(|error| (path, error))
    });
    let failed = match opened {
        Some(Ok(file)) => {
            builder.target(env_logger::Target::Pipe(Box::new(Both { file })));
            None
        }
        Some(Err(failed)) => Some(failed),
        None => None,
    };
    // only the first call in a process has an effect, and a test process makes several
    let _ = builder.try_init();
    if let Some((path, error)) = failed {
        log::warn!("log.file: cannot open {path:?}: {error}; the log goes only to standard error");
    }
}

/// Returns one line of a program's log. `head` contains the program and its context. Escapes control characters,
/// because names from outside, for example of processes, can contain newlines.
pub fn line(head: &str, level: log::Level, message: &fmt::Arguments<'_>) -> String {
    let level = level.as_str().to_ascii_lowercase();
    one_line(&format!("{head}: {level}: {message}")).into_owned()
}

fn context(environment: &Environment) -> String {
    let mut context = environment.command.as_str().to_owned();
    if let Some(target) = &environment.target {
        context = format!("{context} {}@{}", target.container, target.interface);
    }
    if let Some(pod) = environment.pod() {
        context = format!("{context} {pod}");
    }
    context
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_is_one_line_whatever_names_it_has() {
        let log_line = line(
            "rdma-cni[7]: ADD c@eth0 default/a\nrdma-cni[1]: ADD",
            log::Level::Warn,
            &format_args!("process 17 (x\u{1b}]0;y\u{7}\nz) has \"eth2\""),
        );
        assert_eq!(
            log_line,
            "rdma-cni[7]: ADD c@eth0 default/a\\nrdma-cni[1]: ADD: warn: \
             process 17 (x\\u{1b}]0;y\\u{7}\\nz) has \"eth2\""
        );
    }
}
