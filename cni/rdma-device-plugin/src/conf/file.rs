// SPDX-License-Identifier: Apache-2.0
//! The configuration file: JSON or YAML in one of the formats, and the rules that all formats share.

use super::{CONNECTION_MANAGER, Conf, FABRIC, Flags, Parsed, ResourceConf, chain, foreign, own};
use conf_reader::{Field, Wrong, one_line};
use serde_json::Value;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Reason why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    /// The file cannot be read.
    #[error("cannot read {file:?}: {source}")]
    Read {
        /// Path of the file.
        file: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The file is empty.
    #[error(
        "{file:?} is empty; write which resources the node offers, or {{\"mode\":\"hca\"}} for rdma/hca"
    )]
    Empty {
        /// Path of the file.
        file: PathBuf,
    },
    /// The file is neither JSON nor YAML.
    #[error("{file:?}, line {line}, column {column}: no valid {language}: {problem}")]
    Syntax {
        /// Path of the file.
        file: PathBuf,
        /// `JSON` or `YAML`.
        language: &'static str,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// Message of the parser.
        problem: String,
    },
    /// The file has none of the formats, or more than one.
    #[error(
        "{file:?}: {found}; at the top there must be one of resources or erdma \
         (rdma-device-plugin), mode (k8s-rdma-sriov-dev-plugin), configList (k8s-rdma-shared-dev-plugin), resourceList \
         (sriov-network-device-plugin)"
    )]
    Format {
        /// Path of the file.
        file: PathBuf,
        /// Description of the content.
        found: String,
    },
    /// A value cannot be used.
    #[error("{file:?}: {wrong}")]
    Value {
        /// Path of the file.
        file: PathBuf,
        /// Place and reason.
        #[source]
        wrong: Wrong,
    },
}

impl Conf {
    /// Loads the file and applies the flags; without a file, the flags alone.
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
        Self::parse(&text_of(file)?, file)
    }

    /// Reads the file for `install`, where `chain` alone suffices.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn read_for_install(file: &Path) -> Result<Parsed, ConfError> {
        Self::parse_as(&text_of(file)?, file, true)
    }

    /// Parses `text`, the content of `file`.
    pub fn parse(text: &str, file: &Path) -> Result<Parsed, ConfError> {
        Self::parse_as(text, file, false)
    }

    fn parse_as(text: &str, file: &Path, chain_suffices: bool) -> Result<Parsed, ConfError> {
        let value = value_of(text, file)?;
        let failed = |found: String| ConfError::Format {
            file: file.to_owned(),
            found,
        };
        let object = value
            .as_object()
            .ok_or_else(|| failed("there is no object".to_owned()))?;
        type Read = fn(&Field<'_>) -> Result<Parsed, Wrong>;
        let own = Field::root(object);
        let foreign = Field::root(object).any_case();
        let formats: [(&Field<'_>, &[&str], Read); 4] = [
            (&own, &own::MARKS, own::read),
            (&foreign, &["mode"], foreign::mode::read),
            (&foreign, &["configList"], foreign::config_list::read),
            (&foreign, &["resourceList"], foreign::resource_list::read),
        ];
        let mut present: Vec<_> = formats
            .iter()
            .filter_map(|(file, marks, read)| {
                let mark = marks.iter().find(|mark| file.at(mark).is_there())?;
                Some((file, *mark, read))
            })
            .collect();
        if present.len() > 1 {
            present.retain(|(_, mark, _)| *mark != own::ERDMA);
        }
        let (fields, read): (&Field<'_>, Read) = match present.as_slice() {
            [(fields, _, read)] => (**fields, **read),
            [(_, mark, _), (_, other, _), ..] => {
                return Err(failed(format!("{mark} and {other} are of two formats")));
            }
            [] if own.has(chain::FIELD) => match chain_suffices {
                true => (&own, own::read_chain),
                false => {
                    return Err(failed(
                        "chain alone is for rdma-device-plugin install".to_owned(),
                    ));
                }
            },
            [] => {
                let keys: Vec<&str> = object.keys().map(String::as_str).collect();
                return Err(failed(match keys.as_slice() {
                    [] => "the object has no fields".to_owned(),
                    keys => format!("none of the fields {} is known", one_line(&keys.join(", "))),
                }));
            }
        };
        let parsed = read(fields).and_then(|mut parsed| {
            checked(&parsed.conf)?;
            let names = parsed.conf.resources.iter().map(|it| &it.name);
            let chain = parsed.conf.chain.take();
            parsed.conf.chain = chain.map(|it| it.attaching(names));
            Ok(parsed)
        });
        parsed.map_err(|wrong| ConfError::Value {
            file: file.to_owned(),
            wrong,
        })
    }
}

fn text_of(file: &Path) -> Result<String, ConfError> {
    std::fs::read_to_string(file).map_err(|source| ConfError::Read {
        file: file.to_owned(),
        source,
    })
}

/// Checks the rules of every format.
fn checked(conf: &Conf) -> Result<(), Wrong> {
    for (index, resource) in conf.resources.iter().enumerate() {
        let before = &conf.resources[..index];
        let refused = |sentence: String| Err(Wrong::of(&resource.place, sentence));
        if let Some(same) = before.iter().find(|other| other.name == resource.name) {
            return refused(format!(
                "the resource {} is in {} already; give one of them another name",
                resource.name, same.place
            ));
        }
        if conf.fabric && resource.name.as_str() == CONNECTION_MANAGER {
            return refused(format!(
                "{CONNECTION_MANAGER} is the resource of {FABRIC}; give this one another name, or leave {FABRIC} out"
            ));
        }
        let differs = |it: &&ResourceConf| conf.cdi && it.umad != resource.umad;
        if let Some(other) = before.iter().find(differs) {
            return refused(format!(
                "with cdi, umad must be the same here as in {}: a device has one CDI entry",
                other.place
            ));
        }
    }
    Ok(())
}

/// Parses YAML, or JSON if the text starts with a bracket: the JSON parser reports better errors.
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
