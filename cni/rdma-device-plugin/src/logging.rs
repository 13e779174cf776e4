// SPDX-License-Identifier: Apache-2.0
//! The daemon's log on standard error. Of other projects' crates it has only errors.

use crate::history::History;
use cni_protocol::logging::line;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::{io::Write as _, time::SystemTime};

/// This project's crates that can write log lines in the daemon.
const CRATES: [&str; 10] = [
    "attachments",
    "cni_protocol",
    "erdma",
    "node_state",
    "offer",
    "plan",
    "rdma_device_plugin",
    "rdma_ipam",
    "rdma_netns",
    "smcr",
];

/// Logger that also records errors and warnings in a [`History`].
struct Recorder {
    log: env_logger::Logger,
    history: History,
}

impl Log for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.log.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() <= Level::Warn && self.log.enabled(record.metadata()) {
            let text = record.args().to_string();
            let is_error = record.level() == Level::Error;
            self.history.line(is_error, &text, SystemTime::now());
        }
        self.log.log(record);
    }

    fn flush(&self) {
        self.log.flush();
    }
}

/// Starts logging, once for each process. `history` also gets errors and warnings.
pub fn start(level: LevelFilter, history: History) {
    let mut log = env_logger::Builder::new();
    log.filter_level(LevelFilter::Error.min(level));
    for name in CRATES {
        log.filter_module(name, level);
    }
    log.format(|out, record| {
        let line = line("rdma-device-plugin", record.level(), record.args());
        writeln!(out, "{line}")
    });
    let log = log.build();
    log::set_max_level(log.filter());
    // cannot fail: this program sets no other logger
    let _ = log::set_boxed_logger(Box::new(Recorder { log, history }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    /// Returns true if a source below `directory` has one of log's macros.
    fn logs(directory: &Path) -> bool {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|it| it.path()).any(|path| {
            let macros =
                ["error", "warn", "info", "debug", "trace", "log"].map(|it| format!("log::{it}!("));
            let has_macro = |text: String| macros.iter().any(|it| text.contains(it));
            path.is_dir() && logs(&path) || fs::read_to_string(&path).is_ok_and(has_macro)
        })
    }

    /// The daemon contains all of this project's crates but `rdma-cni`.
    #[test]
    fn lines_of_all_crates_are_logged() {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let workspace = fs::read_to_string(tree.join("Cargo.toml")).expect("a manifest");
        let own = workspace.lines().filter_map(|line| {
            let (name, directory) = line.split_once(" = { path = \"")?;
            Some((name, directory.split_once('"')?.0))
        });
        let own = own.filter(|(name, directory)| {
            *name != "rdma-cni" && !directory.starts_with("integration")
        });
        let mut logging: Vec<String> = own
            .filter(|(_, directory)| logs(&tree.join(directory).join("src")))
            .map(|(name, _)| name.replace('-', "_"))
            .collect();
        logging.sort();
        assert_eq!(logging, CRATES);
    }
}
