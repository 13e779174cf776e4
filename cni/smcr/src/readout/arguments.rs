// SPDX-License-Identifier: Apache-2.0
//! The command line.

use std::path::PathBuf;

/// Where the records are, unless it is said.
const STATE_DIR: &str = "/var/lib/cni/rdma-cni";

/// What is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    Help,
    Show(Arguments),
}

/// What is to be shown, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) target: Target,
    pub(super) json: bool,
    pub(super) state_dir: PathBuf,
}

/// Whose namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// That of this program.
    Own,
    /// A namespace's file.
    Path(PathBuf),
    /// A name below `/run/netns`.
    Name(String),
    /// `namespace/name`
    Pod(String),
}

/// The command line is wrong.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UsageError {
    #[error("there is no option {0}")]
    Option(String),
    #[error("--state-dir needs a directory")]
    NoDirectory,
    #[error("one namespace or pod can be shown, not {0:?} as well")]
    More(String),
    #[error("{0:?} is neither a namespace nor namespace/name of a pod")]
    Target(String),
}

pub(super) fn parse(words: &[String]) -> Result<Parsed, UsageError> {
    let mut arguments = Arguments {
        target: Target::Own,
        json: false,
        state_dir: PathBuf::from(STATE_DIR),
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(Parsed::Help),
            "--json" => arguments.json = true,
            "--state-dir" => {
                let directory = words.next().filter(|directory| !directory.is_empty());
                arguments.state_dir = directory.ok_or(UsageError::NoDirectory)?.into();
            }
            option if option.starts_with('-') => {
                return Err(UsageError::Option(option.to_owned()));
            }
            word if arguments.target != Target::Own => {
                return Err(UsageError::More(word.to_owned()));
            }
            word => arguments.target = target(word)?,
        }
    }
    Ok(Parsed::Show(arguments))
}

fn target(word: &str) -> Result<Target, UsageError> {
    if word.starts_with(['/', '.']) {
        return Ok(Target::Path(word.into()));
    }
    match word.split('/').collect::<Vec<_>>()[..] {
        [name] if !name.is_empty() => Ok(Target::Name(name.to_owned())),
        [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
            Ok(Target::Pod(word.to_owned()))
        }
        _ => Err(UsageError::Target(word.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Parsed, UsageError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&words)
    }

    fn target_of(words: &[&str]) -> Target {
        match parsed(words).expect("a command line") {
            Parsed::Show(arguments) => arguments.target,
            Parsed::Help => panic!("{words:?} asks for help"),
        }
    }

    #[test]
    fn nothing_is_the_own_namespace_as_a_table() {
        let expected = Arguments {
            target: Target::Own,
            json: false,
            state_dir: "/var/lib/cni/rdma-cni".into(),
        };
        assert_eq!(parsed(&[]), Ok(Parsed::Show(expected)));
    }

    #[test]
    fn a_path_a_name_and_a_pod_are_told_apart() {
        for path in ["/run/netns/a", "/proc/1/ns/net", "./a", "../b"] {
            assert_eq!(target_of(&[path]), Target::Path(path.into()));
        }
        assert_eq!(target_of(&["cni-1"]), Target::Name("cni-1".to_owned()));
        let pod = Target::Pod("default/web-0".to_owned());
        assert_eq!(target_of(&["default/web-0"]), pod);
    }

    #[test]
    fn options_stand_anywhere() {
        let expected = Arguments {
            target: Target::Name("a".to_owned()),
            json: true,
            state_dir: "/tmp/state".into(),
        };
        let expected = Ok(Parsed::Show(expected));
        assert_eq!(
            parsed(&["--json", "--state-dir", "/tmp/state", "a"]),
            expected
        );
        assert_eq!(
            parsed(&["a", "--state-dir", "/tmp/state", "--json"]),
            expected
        );
        assert_eq!(parsed(&["a", "-h"]), Ok(Parsed::Help));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (words, words_of_error) in [
            (&["--yaml"][..], "there is no option --yaml"),
            (&["--state-dir"], "--state-dir needs a directory"),
            (&["--state-dir", ""], "--state-dir needs a directory"),
            (
                &["a", "b"],
                "one namespace or pod can be shown, not \"b\" as well",
            ),
            (
                &["a/b/c"],
                "\"a/b/c\" is neither a namespace nor namespace/name of a pod",
            ),
            (
                &[""],
                "\"\" is neither a namespace nor namespace/name of a pod",
            ),
            (
                &["a/"],
                "\"a/\" is neither a namespace nor namespace/name of a pod",
            ),
        ] {
            let error = parsed(words).expect_err("wrong usage");
            assert_eq!(error.to_string(), words_of_error);
        }
    }
}
