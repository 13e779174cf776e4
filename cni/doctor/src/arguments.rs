// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::path::PathBuf;

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    Help,
    Examine(Arguments),
}

/// Where to look, and how to tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) paths: Paths,
    pub(super) format: Format,
    /// Whether warnings count as errors do.
    pub(super) strict: bool,
}

/// Where the node's files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The host's file system; all other paths are below it.
    pub root: PathBuf,
    /// Network configurations.
    pub conf_dir: PathBuf,
    /// Programs of plugins, in the order in which they are looked for.
    pub bin_dirs: Vec<PathBuf>,
    /// `stateDir`; none: as the configuration has it.
    pub state_dir: Option<PathBuf>,
    /// Kubelet's directory.
    pub kubelet_dir: PathBuf,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    Facts,
}

/// The command line is wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UsageError {
    #[error("there is no option {0}")]
    Option(String),
    #[error("{0} needs an absolute path")]
    NoDirectory(&'static str),
    #[error("{0:?} is not understood: there are options only")]
    Word(String),
    #[error("--json and --facts are two answers: choose one")]
    TwoFormats,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            root: "/".into(),
            conf_dir: "/etc/cni/net.d".into(),
            bin_dirs: vec!["/opt/cni/bin".into()],
            state_dir: None,
            kubelet_dir: "/var/lib/kubelet".into(),
        }
    }
}

pub(super) fn parse(words: &[String]) -> Result<Parsed, UsageError> {
    let mut paths = Paths::default();
    let mut format = Format::Text;
    let mut strict = false;
    let mut bin_dirs = vec![];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut directory = |option| {
            let word = words.next().filter(|word| word.starts_with('/'));
            word.map(PathBuf::from)
                .ok_or(UsageError::NoDirectory(option))
        };
        match word.as_str() {
            "--help" | "-h" => return Ok(Parsed::Help),
            "--strict" => strict = true,
            "--json" | "--facts" => {
                let asked = match word.as_str() {
                    "--json" => Format::Json,
                    _ => Format::Facts,
                };
                if format != Format::Text && format != asked {
                    return Err(UsageError::TwoFormats);
                }
                format = asked;
            }
            "--root" => paths.root = directory("--root")?,
            "--cni-conf-dir" => paths.conf_dir = directory("--cni-conf-dir")?,
            "--cni-bin-dir" => bin_dirs.push(directory("--cni-bin-dir")?),
            "--state-dir" => paths.state_dir = Some(directory("--state-dir")?),
            "--kubelet-dir" => paths.kubelet_dir = directory("--kubelet-dir")?,
            option if option.starts_with('-') => {
                return Err(UsageError::Option(option.to_owned()));
            }
            word => return Err(UsageError::Word(word.to_owned())),
        }
    }
    if !bin_dirs.is_empty() {
        paths.bin_dirs = bin_dirs;
    }
    Ok(Parsed::Examine(Arguments {
        paths,
        format,
        strict,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Parsed, UsageError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&words)
    }

    #[test]
    fn nothing_is_this_node_as_text() {
        let expected = Arguments {
            paths: Paths::default(),
            format: Format::Text,
            strict: false,
        };
        assert_eq!(parsed(&[]), Ok(Parsed::Examine(expected)));
    }

    #[test]
    fn every_place_can_be_another() {
        let words = [
            "--root",
            "/host",
            "--cni-conf-dir",
            "/c",
            "--cni-bin-dir",
            "/b",
            "--cni-bin-dir",
            "/c",
            "--state-dir",
            "/s",
            "--kubelet-dir",
            "/k",
            "--json",
            "--strict",
        ];
        let expected = Arguments {
            paths: Paths {
                root: "/host".into(),
                conf_dir: "/c".into(),
                bin_dirs: vec!["/b".into(), "/c".into()],
                state_dir: Some("/s".into()),
                kubelet_dir: "/k".into(),
            },
            format: Format::Json,
            strict: true,
        };
        assert_eq!(parsed(&words), Ok(Parsed::Examine(expected)));
        assert_eq!(parsed(&["--strict", "-h"]), Ok(Parsed::Help));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (words, told) in [
            (&["--yaml"][..], "there is no option --yaml"),
            (&["--root"], "--root needs an absolute path"),
            (&["--root", "host"], "--root needs an absolute path"),
            (&["--state-dir", ""], "--state-dir needs an absolute path"),
            (
                &["node-1"],
                "\"node-1\" is not understood: there are options only",
            ),
            (
                &["--json", "--facts"],
                "--json and --facts are two answers: choose one",
            ),
        ] {
            assert_eq!(parsed(words).expect_err("wrong usage").to_string(), told);
        }
    }
}
