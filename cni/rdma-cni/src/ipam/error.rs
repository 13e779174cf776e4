// SPDX-License-Identifier: Apache-2.0
//! Errors of a delegation, with functions that classify them for the caller.

use super::built_in;
use cni_protocol::code;
use conf_reader::steers;
use rdma_ipam::{error::own, store::StoreError};
use serde_json::Value;
use std::{io, path::PathBuf, process::ExitStatus};

/// Maximum number of characters that a message quotes from another program's output, which can have any length.
const SHOWN: usize = 400;

/// The delegation to an IPAM plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// No directory of `CNI_PATH` contains the program.
    #[error(
        "IPAM plugin {name:?} is not in CNI_PATH ({path}): install it in one of these directories, or correct ipam.type"
    )]
    NotFound {
        /// `ipam.type`
        name: String,
        /// The searched directories of `CNI_PATH`.
        path: String,
    },
    /// The program could not be run, or exceeded its time limit.
    #[error("cannot run IPAM plugin {program:?}: {source}")]
    Run {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The plugin answered with an error, or failed without an answer.
    #[error("IPAM plugin {name:?}, {command}: {message}")]
    Refused {
        /// `ipam.type`
        name: String,
        /// The command: `ADD`, `DEL`…
        command: &'static str,
        /// CNI code of the answer.
        code: Option<u64>,
        /// Message and details of the answer, or the plugin's exit status.
        message: String,
    },
    /// A signal ended the plugin.
    #[error("IPAM plugin {name:?}, {command}: the plugin ended with {status}")]
    Killed {
        /// `ipam.type`
        name: String,
        /// The command: `ADD`, `DEL`…
        command: &'static str,
        /// The exit status.
        status: ExitStatus,
    },
    /// The changes of the built-in plugin could not be synced to disk.
    #[error("IPAM: {0}")]
    Unsettled(StoreError),
    /// The plugin's answer is wrong.
    #[error("IPAM plugin {name:?} answered with an invalid {field}: {value}")]
    Answer {
        /// `ipam.type`
        name: String,
        /// The wrong field.
        field: &'static str,
        /// The wrong value.
        value: String,
    },
}

impl IpamError {
    /// Makes the error of the plugin `name` whose `command` failed, from its `output`. If `output` is no CNI error, the
    /// message is `without`.
    pub fn refused(name: &str, command: &'static str, output: &[u8], without: &str) -> Self {
        let error: Value = serde_json::from_slice(output).unwrap_or_default();
        let words = [&error["msg"], &error["details"]]
            .into_iter()
            .filter_map(Value::as_str);
        let words: Vec<String> = words.filter(|text| !text.is_empty()).map(shown).collect();
        Self::Refused {
            name: name.to_owned(),
            command,
            code: error["code"].as_u64(),
            message: match words.is_empty() {
                true => without.to_owned(),
                false => words.join("; "),
            },
        }
    }

    /// Returns true if the failed request certainly had no effect: the plugin is missing, or answered with a CNI error.
    /// Returns false for any other error, and for the code [`own::STILL_HELD`] of `rdma-ipam`: the plugin may have
    /// executed the request.
    pub fn is_answer(&self) -> bool {
        match self {
            Self::NotFound { .. } => true,
            Self::Refused { name, code, .. } => {
                let still_held = u64::from(own::STILL_HELD);
                code.is_some_and(|it| name != built_in::NAME || it != still_held)
            }
            _ => false,
        }
    }

    /// Returns true if a later call may succeed: the plugin reported code 11, exceeded its time limit, or was killed.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Refused { code, .. } => *code == Some(u64::from(code::TRY_LATER)),
            Self::Run { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            Self::Killed { .. } => true,
            Self::NotFound { .. } | Self::Unsettled(_) | Self::Answer { .. } => false,
        }
    }

    /// Returns true if the plugin rejected its configuration. Every call with the same configuration then fails.
    pub fn is_configuration(&self) -> bool {
        let codes = [
            code::INCOMPATIBLE_VERSION,
            code::UNSUPPORTED_FIELD,
            code::CONFIGURATION,
        ];
        let is_one = |it: u64| codes.iter().any(|code| u64::from(*code) == it);
        matches!(self, Self::Refused { code: Some(it), .. } if is_one(*it))
    }
}

/// Returns another program's output as one escaped line of at most `SHOWN` characters.
pub(super) fn shown(words: &str) -> String {
    let mut line = String::new();
    let mut left = SHOWN;
    for character in words.chars() {
        let escaped = match steers(character) {
            true => character.escape_default().collect(),
            false => String::from(character),
        };
        let Some(rest) = left.checked_sub(escaped.chars().count()) else {
            line.push('…');
            break;
        };
        line.push_str(&escaped);
        left = rest;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipam::Answer;

    #[test]
    fn an_ipam_plugins_output_is_reported_in_one_bounded_line() {
        let error = |output: &str| {
            let error = Answer::parse("theirs", output.as_bytes());
            error.expect_err("no answer").to_string()
        };
        assert_eq!(
            error("panic:\n\u{1b}[31mgoroutine 1\n"),
            "IPAM plugin \"theirs\" answered with an invalid result: panic:\\n\\u{1b}[31mgoroutine 1"
        );
        for character in ["x", "\0", "\u{9f}", "\u{2028}", "\u{202e}"] {
            // white space at the ends is trimmed
            let message = error(&format!("<{}>", character.repeat(1 << 20)));
            assert!(message.len() < 500 && message.ends_with('…'), "{message}");
        }
        let many = serde_json::json!({"ips": {"x": "y\n".repeat(1000)}}).to_string();
        assert!(error(&many).ends_with('…'));
    }

    #[test]
    fn an_error_about_held_addresses_is_no_refusal() {
        let error = |name, code: u32| {
            let output = serde_json::json!({"code": code, "msg": "no"}).to_string();
            IpamError::refused(name, "ADD", output.as_bytes(), "").is_answer()
        };
        assert!(error(built_in::NAME, 5) && error("theirs", own::STILL_HELD));
        assert!(!error(built_in::NAME, own::STILL_HELD));
    }
}
