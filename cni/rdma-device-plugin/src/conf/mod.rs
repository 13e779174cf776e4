// SPDX-License-Identifier: Apache-2.0
//! The configuration file, in the daemon's own format or one of the three that users have.
//!
//! | module | format | recognised by |
//! |---|---|---|
//! | `own`, `own_erdma` | ours | `resources`, `erdma` |
//! | `mode` | k8s-rdma-sriov-dev-plugin | `mode` |
//! | `config_list` | k8s-rdma-shared-dev-plugin | `configList` |
//! | `resource_list` | sriov-network-device-plugin | `resourceList` |
//!
//! Each may have `chain` beside that. All of them may be JSON or YAML. An unknown field is an error in our own format; in the
//! others it is a remark, as their owners pass over it. A field that is known there, and not
//! done here, is a remark if nothing else comes of it, and else an error. What the command line
//! says, in `flags`, wins over the file.

pub mod chain;
mod config_list;
pub mod erdma;
mod fields;
pub mod flags;
mod listed;
mod mode;
pub mod name;
mod own;
mod own_erdma;
mod resource_list;
pub mod selector;

pub use chain::Chain;
pub use erdma::{Erdma, Exposed, Origin};
pub use flags::Flags;
pub use name::ResourceName;
pub use selector::Selector;

use fields::Fields;
use serde_json::Value;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// A checked configuration: what the node is to offer.
#[derive(Clone, Debug, PartialEq)]
pub struct Conf {
    /// The resources, in the file's order; no name twice.
    pub resources: Vec<ResourceConf>,
    /// Containers get devices by CDI names instead of paths.
    pub cdi: bool,
    /// What is done with eRDMA NICs.
    pub erdma: Erdma,
    /// Our plugin's place in the chain; none: it is not this program's business.
    pub chain: Option<Chain>,
}

/// A configuration, and what its user should know about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    /// The configuration.
    pub conf: Conf,
    /// One sentence each: fields that are passed over, resources that are left out.
    pub remarks: Vec<String>,
}

/// One resource.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceConf {
    /// Its name.
    pub name: ResourceName,
    /// Where in the file it is, `resourceList[0]`.
    pub place: String,
    /// How its ids are made.
    pub ids: Ids,
    /// Its devices: those that fit one of the selectors; without a selector, all that have an
    /// RDMA device.
    pub devices: Vec<Selector>,
    /// Whether containers get `umad` and `issm` character devices too.
    pub umad: bool,
    /// Whether kubelet is told the NUMA nodes of its ids.
    pub topology: bool,
    /// How many devices it has to have; none: what there is will do.
    pub require: Option<Require>,
}

/// How many devices of a resource there have to be, and healthy, before a pod gets any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// All that the daemon has seen of it.
    All,
    /// So many.
    Number(u32),
}

impl fmt::Display for Require {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// How a resource's ids are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// `0`…: each for all devices, or for one, as kubelet's NUMA alignment goes.
    Shared {
        /// How many.
        count: u32,
        /// What each stands for.
        allocate: Allocate,
    },
    /// `<rdma>/0`…, for each device.
    PerNic {
        /// How many of each device.
        count: u32,
        /// What each stands for.
        allocate: Allocate,
    },
    /// The device's address.
    Exclusive,
}

/// What a shared id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// All devices of the resource.
    All,
    /// One device, near the pod's CPUs.
    Numa,
}

/// Ids of a shared resource where the file does not say.
const SHARED_IDS: u32 = 1000;

/// Ids of each NIC where the file does not say.
const NIC_IDS: u32 = 200;

/// More ids than this would not fit into one message to kubelet (4 MiB, gRPC's default).
pub(crate) const MOST_IDS: u32 = 50_000;

/// The same for each NIC, of which there may be more than eight.
const MOST_NIC_IDS: u32 = 5_000;

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    /// The file could not be read.
    #[error("cannot read {file:?}: {source}")]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error(
        "{file:?} is empty; write which resources the node offers, or {{\"mode\":\"hca\"}} for rdma/hca"
    )]
    Empty {
        /// The file.
        file: PathBuf,
    },
    /// It is neither JSON nor YAML.
    #[error("{file:?}, line {line}, column {column}: no valid {language}: {problem}")]
    Syntax {
        /// The file.
        file: PathBuf,
        /// `JSON`, `YAML`
        language: &'static str,
        /// From 1.
        line: u64,
        /// From 1.
        column: u64,
        /// What the parser says.
        problem: String,
    },
    /// It has none of the formats, or more than one.
    #[error(
        "{file:?}: {found}; at the top there must be one of resources or erdma \
         (rdma-device-plugin), mode (k8s-rdma-sriov-dev-plugin), configList (k8s-rdma-shared-dev-plugin), resourceList \
         (sriov-network-device-plugin)"
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// A value cannot be used.
    #[error("{file:?}: {wrong}")]
    Value {
        /// The file.
        file: PathBuf,
        /// Where, and why.
        #[source]
        wrong: Wrong,
    },
}

/// A value that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct Wrong {
    /// `resourceList[1].resourceName`
    pub place: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl Wrong {
    fn new(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            problem: problem.into(),
        }
    }
}

impl Conf {
    /// What the file and the flags say; without a file, the flags alone.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Parsed, ConfError> {
        let mut parsed = match file {
            Some(file) => Self::read(file)?,
            None => flags.alone(),
        };
        flags.apply(&mut parsed);
        Ok(parsed)
    }

    /// Reads the file.
    pub fn read(file: &Path) -> Result<Parsed, ConfError> {
        let text = std::fs::read_to_string(file).map_err(|source| ConfError::Read {
            file: file.to_owned(),
            source,
        })?;
        Self::parse(&text, file)
    }

    /// Reads `text`, which is the content of `file`.
    pub fn parse(text: &str, file: &Path) -> Result<Parsed, ConfError> {
        let value = value_of(text, file)?;
        let failed = |found: String| ConfError::Format {
            file: file.to_owned(),
            found,
        };
        let object = value
            .as_object()
            .ok_or_else(|| failed("there is no object".to_owned()))?;
        type Read = fn(&Fields<'_>) -> Result<Parsed, Wrong>;
        let formats: [(&str, &[&str], Read); 4] = [
            ("resources", &own::KEYS, own::read),
            ("mode", &["mode"], mode::read),
            ("configList", &["configList"], config_list::read),
            ("resourceList", &["resourceList"], resource_list::read),
        ];
        let own = Fields::root(object, false);
        let foreign = Fields::root(object, true);
        let fields = |format: &str| {
            if format == "resources" {
                &own
            } else {
                &foreign
            }
        };
        let mut present: Vec<_> = formats
            .iter()
            .filter_map(|(format, keys, read)| {
                let there = |key: &&&str| fields(format).get(key).is_some();
                Some((*format, *keys.iter().find(there)?, read))
            })
            .collect();
        if present.len() > 1 {
            present.retain(|(_, key, _)| *key != own::ERDMA);
        }
        let (format, read) = match present.as_slice() {
            [(format, _, read)] => (*format, read),
            [(_, key, _), (_, other, _), ..] => {
                return Err(failed(format!("{key} and {other} are of two formats")));
            }
            [] => {
                let keys: Vec<&str> = object.keys().map(String::as_str).collect();
                return Err(failed(match keys.as_slice() {
                    [] => "the object has no fields".to_owned(),
                    keys => format!("none of the fields {} is known", keys.join(", ")),
                }));
            }
        };
        let parsed = read(fields(format)).and_then(|parsed| {
            checked(&parsed.conf)?;
            Ok(parsed)
        });
        parsed.map_err(|wrong| ConfError::Value {
            file: file.to_owned(),
            wrong,
        })
    }
}

/// What holds in every format.
fn checked(conf: &Conf) -> Result<(), Wrong> {
    for (index, resource) in conf.resources.iter().enumerate() {
        let before = &conf.resources[..index];
        if let Some(same) = before.iter().find(|other| other.name == resource.name) {
            return Err(Wrong::new(
                &resource.place,
                format!(
                    "the resource {} is in {} already; give one of them another name",
                    resource.name, same.place
                ),
            ));
        }
        if let Some(other) = before
            .iter()
            .find(|it| conf.cdi && it.umad != resource.umad)
        {
            return Err(Wrong::new(
                &resource.place,
                format!(
                    "with cdi, umad must be the same here as in {}: a device has one CDI entry",
                    other.place
                ),
            ));
        }
    }
    Ok(())
}

/// A file that starts with a bracket is JSON: its errors are told better so.
fn value_of(text: &str, file: &Path) -> Result<Value, ConfError> {
    let file = || file.to_owned();
    let text = text.trim_start_matches('\u{feff}');
    let start = text.trim_start();
    if start.is_empty() {
        return Err(ConfError::Empty { file: file() });
    }
    if start.starts_with(['{', '[']) {
        return serde_json::from_str(text).map_err(|error| ConfError::Syntax {
            file: file(),
            language: "JSON",
            line: error.line() as u64,
            column: error.column() as u64,
            problem: error.to_string(),
        });
    }
    let value: Value = serde_saphyr::from_str(text).map_err(|error| {
        let location = error.location();
        let problem = error.without_snippet().to_string();
        ConfError::Syntax {
            file: file(),
            language: "YAML",
            line: location.as_ref().map_or(1, |location| location.line()),
            column: location.as_ref().map_or(1, |location| location.column()),
            problem,
        }
    })?;
    if value.is_null() {
        return Err(ConfError::Empty { file: file() });
    }
    Ok(value)
}

/// A resource's name, which is at `place`.
fn name_at(name: &str, place: String) -> Result<ResourceName, Wrong> {
    ResourceName::new(name).map_err(|error| Wrong::new(place, error.to_string()))
}
