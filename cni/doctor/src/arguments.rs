// SPDX-License-Identifier: Apache-2.0
//! The command line.

use super::pod::Question;
use std::path::{Path, PathBuf};

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    Help,
    Examine(Arguments),
    Pod(Question, Paths),
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
    #[error("pod needs a pod's name, with its namespace in front if need be: default/trainer-0")]
    NoPod,
    #[error("--gid-index needs a whole number")]
    NoIndex,
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

/// The index that Lingjun's presets pin.
const PINNED: u32 = 3;

pub(super) fn parse(words: &[String]) -> Result<Parsed, UsageError> {
    if let Some(("pod", rest)) = words
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        return pod(rest);
    }
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

fn pod(words: &[String]) -> Result<Parsed, UsageError> {
    let (mut paths, mut name, mut index) = (Paths::default(), None, PINNED);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let directory = |word: Option<&String>, option| {
            let word = word.filter(|word| Path::new(word).is_absolute());
            word.map(PathBuf::from)
                .ok_or(UsageError::NoDirectory(option))
        };
        match word.as_str() {
            "--help" | "-h" => return Ok(Parsed::Help),
            "--gid-index" => {
                let number = words.next().and_then(|it| it.parse().ok());
                index = number.ok_or(UsageError::NoIndex)?;
            }
            "--root" => paths.root = directory(words.next(), "--root")?,
            "--state-dir" => paths.state_dir = Some(directory(words.next(), "--state-dir")?),
            option if option.starts_with('-') => {
                return Err(UsageError::Option(option.to_owned()));
            }
            word if name.is_none() => name = Some(word.to_owned()),
            word => return Err(UsageError::Word(word.to_owned())),
        }
    }
    let pod = name.ok_or(UsageError::NoPod)?;
    Ok(Parsed::Pod(Question { pod, index }, paths))
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
    fn a_pod_is_asked_for_by_its_name() {
        let asked = |pod: &str, index| Question {
            pod: pod.into(),
            index,
        };
        let default = Parsed::Pod(asked("trainer-0", PINNED), Paths::default());
        assert_eq!(parsed(&["pod", "trainer-0"]), Ok(default));
        let paths = Paths {
            root: "/host".into(),
            state_dir: Some("/s".into()),
            ..Paths::default()
        };
        let words = [
            "pod",
            "--gid-index",
            "5",
            "a/b",
            "--root",
            "/host",
            "--state-dir",
            "/s",
        ];
        assert_eq!(parsed(&words), Ok(Parsed::Pod(asked("a/b", 5), paths)));
        for (words, told) in [
            (&["pod"][..], UsageError::NoPod),
            (&["pod", "a", "--gid-index", "x"], UsageError::NoIndex),
            (&["pod", "a", "b"], UsageError::Word("b".into())),
            (
                &["pod", "a", "--root", "x"],
                UsageError::NoDirectory("--root"),
            ),
            (&["pod", "a", "--json"], UsageError::Option("--json".into())),
        ] {
            assert_eq!(parsed(words), Err(told), "{words:?}");
        }
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
