// SPDX-License-Identifier: Apache-2.0
//! The network namespace in the command line of `rdma-device-plugin smc`.

use std::{path::PathBuf, str::FromStr};

/// A network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Path of a namespace's file.
    Path(PathBuf),
    /// Name below `/run/netns`.
    Name(String),
    /// Kubernetes pod: `namespace/name`.
    Pod(String),
}

/// Parses a target from the command line. A path begins with `/` or `.`. A pod has the form `namespace/name`. A text
/// without `/` is a name. Any other text is an error.
impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with(['/', '.']) {
            return Ok(Self::Path(text.into()));
        }
        match text.split('/').collect::<Vec<_>>()[..] {
            [name] if !name.is_empty() => Ok(Self::Name(name.to_owned())),
            [namespace, name] if !namespace.is_empty() && !name.is_empty() => {
                Ok(Self::Pod(text.to_owned()))
            }
            _ => Err("must be a network namespace (path or name), or a pod as namespace/name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_a_name_and_a_pod_are_distinguished() {
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
