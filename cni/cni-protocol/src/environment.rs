// SPDX-License-Identifier: Apache-2.0
//! The `CNI_*` environment variables, and their checks (CNI specification, section 2).

use rdma_netns::InterfaceName;
use std::{collections::BTreeMap, path::PathBuf};

/// A verb of CNI, or the project's own command `plan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attaches the container.
    Add,
    /// Detaches the container.
    Del,
    /// Checks that the attachment still matches the result of ADD.
    Check,
    /// Detaches the attachments that the runtime no longer lists.
    Gc,
    /// Reports whether ADD would work.
    Status,
    /// Lists the supported versions of the specification.
    Version,
    /// Prints the operations of an ADD, for an administrator. CNI does not define this command.
    Plan,
}

impl Command {
    /// Returns the value of `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
            Self::Plan => "plan",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [
            Self::Add,
            Self::Del,
            Self::Check,
            Self::Gc,
            Self::Status,
            Self::Version,
        ]
        .into_iter()
        .find(|command| command.as_str() == text)
    }

    fn requires(self, variable: &str) -> bool {
        match variable {
            "CNI_CONTAINERID" | "CNI_IFNAME" => {
                matches!(self, Self::Add | Self::Del | Self::Check | Self::Plan)
            }
            "CNI_NETNS" => matches!(self, Self::Add | Self::Check | Self::Plan),
            "CNI_PATH" => !matches!(self, Self::Version | Self::Plan),
            _ => false,
        }
    }
}

/// The checked environment.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `CNI_COMMAND`
    pub command: Command,
    /// `CNI_CONTAINERID`, `CNI_IFNAME` and `CNI_NETNS`, for commands that require them.
    pub target: Option<Target>,
    /// `CNI_ARGS`
    pub args: BTreeMap<String, String>,
    /// `CNI_PATH`
    pub path: Vec<PathBuf>,
    /// All variables, which the IPAM plugin inherits.
    pub all: BTreeMap<String, String>,
}

/// The attachment to which a command applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `CNI_CONTAINERID`
    pub container: String,
    /// `CNI_IFNAME`
    pub interface: InterfaceName,
    /// `CNI_NETNS`, which is optional for DEL.
    pub netns: Option<PathBuf>,
}

/// An error in the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// Required variables are unset or empty.
    #[error(
        "{} needs {} to be set{}",
        command.map_or("a CNI plugin", Command::as_str),
        variables.join(", "),
        by_hand(*command)
    )]
    Missing {
        /// The command that requires the variables. `None`: `CNI_COMMAND` itself is missing.
        command: Option<Command>,
        /// All missing variables.
        variables: Vec<&'static str>,
    },
    /// A value is invalid.
    #[error("{variable}={value:?}: {reason}")]
    Invalid {
        /// Name of the variable.
        variable: &'static str,
        /// Value of the variable.
        value: String,
        /// The broken rule.
        reason: String,
    },
    /// The environment has two or more errors.
    #[error("{}", one_sentence(.0))]
    Several(Vec<Self>),
}

/// Returns advice for a person who runs the plugin by hand. Returns an empty text for verbs that a runtime calls.
fn by_hand(command: Option<Command>) -> &'static str {
    match command {
        None => {
            "; a container runtime sets these variables, and --help lists the commands for people"
        }
        Some(Command::Plan) => {
            "; for example CNI_CONTAINERID=try CNI_NETNS=/run/netns/try CNI_IFNAME=eth0, after ip netns add try"
        }
        Some(_) => "",
    }
}

fn one_sentence(errors: &[EnvironmentError]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    errors.join("; ")
}

impl Environment {
    /// Checks the environment `all`. `by_hand` is the command that a person passed as an argument. It replaces
    /// `CNI_COMMAND`.
    pub fn parse(
        all: BTreeMap<String, String>,
        by_hand: Option<Command>,
    ) -> Result<Self, EnvironmentError> {
        let get = |name: &str| all.get(name).filter(|value| !value.is_empty());
        let mut errors = vec![];
        let command = match (by_hand, get("CNI_COMMAND").map(|text| command(text))) {
            (Some(command), _) | (None, Some(Ok(command))) => Some(command),
            (None, Some(Err(error))) => {
                errors.push(error);
                None
            }
            (None, None) => None,
        };
        let needed = |variable: &str| command.unwrap_or(Command::Add).requires(variable);
        // the required variables depend on the command, which is unknown after an error
        if errors.is_empty() {
            let mut missing = match command {
                Some(_) => vec![],
                None => vec!["CNI_COMMAND"],
            };
            missing.extend(
                ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
                    .into_iter()
                    .filter(|variable| needed(variable) && get(variable).is_none()),
            );
            if !missing.is_empty() {
                errors.push(EnvironmentError::Missing {
                    command,
                    variables: missing,
                });
            }
        }
        let of_command = |name| get(name).filter(|_| needed(name));
        let container = kept(
            of_command("CNI_CONTAINERID").map(|it| container_id(it)),
            &mut errors,
        );
        let interface = kept(
            of_command("CNI_IFNAME").map(|it| interface_name(it)),
            &mut errors,
        );
        let args = kept(get("CNI_ARGS").map(|it| arguments(it)), &mut errors);
        let command = match (command, errors.len()) {
            (Some(command), 0) => command,
            (_, 1) => return Err(errors.remove(0)),
            _ => return Err(EnvironmentError::Several(errors)),
        };
        let target = container
            .zip(interface)
            .map(|(container, interface)| Target {
                container,
                interface,
                netns: get("CNI_NETNS").map(PathBuf::from),
            });
        let args = args.unwrap_or_default();
        let path = get("CNI_PATH")
            .map(|path| std::env::split_paths(path).collect())
            .unwrap_or_default();
        Ok(Self {
            command,
            target,
            args,
            path,
            all,
        })
    }

    /// Returns namespace and name of the Kubernetes pod, if the runtime passes them in `CNI_ARGS`.
    pub fn pod(&self) -> Option<String> {
        let namespace = self.args.get("K8S_POD_NAMESPACE")?;
        let name = self.args.get("K8S_POD_NAME")?;
        Some(format!("{namespace}/{name}"))
    }
}

/// Returns true if `text` is a valid container id or network name (specification, section 2).
pub fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphanumeric())
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Maximum length of an identifier in bytes: the limit for file names, minus the characters that a record's file name
/// adds.
pub const MAX_IDENTIFIER: usize = 200;

/// Returns the value if it is set and valid. Adds an error to `errors` if the value is invalid.
fn kept<T>(
    value: Option<Result<T, EnvironmentError>>,
    errors: &mut Vec<EnvironmentError>,
) -> Option<T> {
    value?.map_err(|error| errors.push(error)).ok()
}

fn command(text: &str) -> Result<Command, EnvironmentError> {
    Command::parse(text).ok_or_else(|| EnvironmentError::Invalid {
        variable: "CNI_COMMAND",
        value: text.to_owned(),
        reason: "must be one of ADD, DEL, CHECK, GC, STATUS, VERSION".into(),
    })
}

fn container_id(text: &str) -> Result<String, EnvironmentError> {
    let invalid = |reason: String| EnvironmentError::Invalid {
        variable: "CNI_CONTAINERID",
        value: text.to_owned(),
        reason,
    };
    if !is_identifier(text) {
        return Err(invalid(
            "must start with a letter or digit, and have only letters, digits, _ . -".into(),
        ));
    }
    if text.len() > MAX_IDENTIFIER {
        return Err(invalid(format!(
            "must have at most {MAX_IDENTIFIER} characters"
        )));
    }
    Ok(text.to_owned())
}

fn interface_name(text: &str) -> Result<InterfaceName, EnvironmentError> {
    InterfaceName::try_from(text).map_err(|reason| EnvironmentError::Invalid {
        variable: "CNI_IFNAME",
        value: text.to_owned(),
        reason: reason.to_string(),
    })
}

fn arguments(text: &str) -> Result<BTreeMap<String, String>, EnvironmentError> {
    let mut arguments = BTreeMap::new();
    for pair in text.split(';').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| EnvironmentError::Invalid {
                variable: "CNI_ARGS",
                value: text.to_owned(),
                reason: format!("{pair:?} is not KEY=VALUE"),
            })?;
        arguments.insert(key.to_owned(), value.to_owned());
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
        let all = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        Environment::parse(all, None)
    }

    #[test]
    fn all_that_is_missing_is_named() {
        let error = parse(&[("CNI_COMMAND", "ADD"), ("CNI_IFNAME", "eth0")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "ADD needs CNI_CONTAINERID, CNI_NETNS, CNI_PATH to be set"
        );
        let error = parse(&[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a CNI plugin needs CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_PATH to be set; a container \
             runtime sets these variables, and --help lists the commands for people"
        );
    }

    #[test]
    fn all_that_is_invalid_is_named_beside_what_is_missing() {
        let error = parse(&[
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "../x"),
            ("CNI_IFNAME", "a/b"),
            ("CNI_ARGS", "A=1;B"),
            ("CNI_PATH", "/opt/cni/bin"),
        ])
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "ADD needs CNI_NETNS to be set; CNI_CONTAINERID=\"../x\": must start with a letter or digit, and \
             have only letters, digits, _ . -; CNI_IFNAME=\"a/b\": interface name \"a/b\" contains '/'; \
             CNI_ARGS=\"A=1;B\": \"B\" is not KEY=VALUE"
        );
    }

    #[test]
    fn an_unknown_command_requires_no_variables() {
        let error = parse(&[("CNI_COMMAND", "add"), ("CNI_IFNAME", "a/b")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "CNI_COMMAND=\"add\": must be one of ADD, DEL, CHECK, GC, STATUS, VERSION; CNI_IFNAME=\"a/b\": interface \
             name \"a/b\" contains '/'"
        );
    }

    #[test]
    fn unknown_arguments_are_kept() {
        let environment = parse(&[
            ("CNI_COMMAND", "STATUS"),
            ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
            (
                "CNI_ARGS",
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;X=y=z",
            ),
        ])
        .unwrap();
        assert_eq!(environment.pod().as_deref(), Some("a/b"));
        assert_eq!(environment.args["X"], "y=z");
        assert_eq!(environment.path.len(), 2);
    }
}
