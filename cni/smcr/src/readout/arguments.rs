// SPDX-License-Identifier: Apache-2.0
//! What `rdma-device-plugin smc` shows. The program parses its command line.

use std::{path::PathBuf, str::FromStr};

/// Options of `smc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Whose namespace.
    pub target: Target,
    /// Whether the output is JSON.
    pub json: bool,
    /// Where the records of pods are.
    pub state_dir: PathBuf,
}

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// That of this program.
    Own,
    /// A namespace's file.
    Path(PathBuf),
    /// A name below `/run/netns`.
    Name(String),
    /// `namespace/name`
    Pod(String),
}

/// As it is on the command line: a path begins with `/` or `.`, and a pod has a `/` in it.
impl FromStr for Target {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        if word.starts_with(['/', '.']) {
            return Ok(Self::Path(word.into()));
        }
        match word.split('/').collect::<Vec<_>>()[..] {
            [name] if !name.is_empty() => Ok(Self::Name(name.to_owned())),
            [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::Pod(word.to_owned()))
            }
            _ => Err("neither a namespace nor namespace/name of a pod"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_a_name_and_a_pod_are_told_apart() {
        for path in ["/run/netns/a", "/proc/1/ns/net", "./a", "../b"] {
            assert_eq!(path.parse(), Ok(Target::Path(path.into())));
        }
        assert_eq!("cni-1".parse(), Ok(Target::Name("cni-1".to_owned())));
        let pod = Target::Pod("default/web-0".to_owned());
        assert_eq!("default/web-0".parse(), Ok(pod));
        for word in ["a/b/c", "", "a/", "x/"] {
            assert!(word.parse::<Target>().is_err(), "{word:?}");
        }
    }
}
