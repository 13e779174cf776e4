// SPDX-License-Identifier: Apache-2.0
//! The network configuration, as far as every plugin reads it.

use crate::{
    Mistakes, SpecVersion,
    environment::{MAX_IDENTIFIER, is_identifier},
    version::SUPPORTED,
};
use conf_reader::{AbsolutePath, Field, Wrong, json, one_line};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The fields that every plugin of a network has, checked.
#[derive(Clone, Debug)]
pub struct Network {
    /// `cniVersion`
    pub version: SpecVersion,
    /// `name`
    pub name: String,
    /// `log`
    pub log: Log,
    /// `prevResult`, whole.
    pub prev_result: Option<Value>,
    /// `cni.dev/valid-attachments`, of GC; none: the runtime gave no list, so that nothing is known.
    pub valid_attachments: Option<Vec<ValidAttachment>>,
}

/// `log`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `level`
    pub level: log::LevelFilter,
    /// `file`, written besides standard error.
    pub file: Option<PathBuf>,
}

/// An attachment that the runtime still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidAttachment {
    /// Container id.
    pub container: String,
    /// `CNI_IFNAME`
    pub interface: String,
}

/// The configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    /// Standard input is no JSON object.
    #[error("the network configuration on standard input is no JSON object: {0}")]
    NotJson(String),
    /// Standard input is a network's whole list.
    #[error(
        "standard input is a whole list: give one entry of its plugins, with the list's cniVersion and name in it \
         (jq '{{cniVersion, name}} + .plugins[N]' FILE, N from 0)"
    )]
    List,
    /// There is no `cniVersion`, which means 0.1.0 (specification, section 1).
    #[error(
        "cniVersion is missing, which means 0.1.0: a runtime copies it from the list to each entry; supported are \
         {supported}",
        supported = versions()
    )]
    NoVersion,
    /// `cniVersion` is not one of ours.
    #[error("cniVersion {0:?} is not supported; supported are {supported}", supported = versions())]
    Version(String),
    /// A verb that the configuration's version does not have.
    #[error("cniVersion {version} has no {verb}: it came with {since}")]
    Verb {
        /// `cniVersion`
        version: SpecVersion,
        /// `CHECK`…
        verb: &'static str,
        /// The version that has it.
        since: SpecVersion,
    },
    /// A known field with a wrong value.
    #[error("{field}: {value} is not valid: {expected}")]
    Value {
        /// Full name of the field.
        field: String,
        /// Its value, as JSON.
        value: String,
        /// What it has to be.
        expected: String,
    },
    /// A field that has to be there.
    #[error("{field} is missing: {expected}")]
    Missing {
        /// Its name.
        field: &'static str,
        /// What it has to be.
        expected: &'static str,
    },
    /// A value that the plugin does not do.
    #[error("{field}: {value} is not supported: {remedy}")]
    Unsupported {
        /// Full name of the field.
        field: &'static str,
        /// Its value.
        value: String,
        /// Why, and what to do instead.
        remedy: &'static str,
    },
}

impl From<Wrong> for ConfError {
    fn from(wrong: Wrong) -> Self {
        Self::Value {
            field: one_line(&wrong.place).into_owned(),
            value: wrong.value.unwrap_or_else(|| "null".to_owned()),
            expected: wrong.problem,
        }
    }
}

fn versions() -> String {
    SUPPORTED.map(SpecVersion::as_str).join(", ")
}

/// Standard input as a JSON object.
pub fn decode(stdin: &[u8]) -> Result<Map<String, Value>, ConfError> {
    match serde_json::from_slice(stdin) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(other) => Err(ConfError::NotJson(format!("it is {:.60}", json(&other)))),
        Err(_) if stdin.iter().all(u8::is_ascii_whitespace) => {
            Err(ConfError::NotJson("it is empty".to_owned()))
        }
        Err(error) => Err(ConfError::NotJson(error.to_string())),
    }
}

/// The `cniVersion` of a configuration; 0.1.0 where it has none, as the specification says.
pub fn version_text(raw: &Map<String, Value>) -> &str {
    raw.get("cniVersion")
        .and_then(Value::as_str)
        .unwrap_or("0.1.0")
}

impl Network {
    /// Checks the fields that every plugin has. Only `name` cannot be done without, and of GC the
    /// list of valid attachments.
    ///
    /// # Errors
    /// A value is wrong, and none of the `mistakes` that are passed over.
    pub fn parse(raw: &Map<String, Value>, mistakes: &mut Mistakes) -> Result<Self, ConfError> {
        if raw.get("plugins").is_some_and(Value::is_array) && !raw.contains_key("type") {
            return Err(ConfError::List);
        }
        let file = &Field::root(raw);
        let newest = SUPPORTED[SUPPORTED.len() - 1];
        Ok(Self {
            version: mistakes.or(version(file, raw), newest)?,
            name: name(file)?,
            log: mistakes.or(log_settings(file), Log::default())?,
            prev_result: mistakes.or(prev_result(file), None)?,
            valid_attachments: mistakes.or_for_del(valid_attachments(file), None)?,
        })
    }

    /// Refuses a verb that the configuration's version does not have.
    pub fn since(&self, verb: &'static str, since: SpecVersion) -> Result<(), ConfError> {
        match self.version {
            version if version >= since => Ok(()),
            version => Err(ConfError::Verb {
                version,
                verb,
                since,
            }),
        }
    }

    /// `prevResult`, for verbs that need it.
    pub fn required_prev_result(&self) -> Result<&Value, ConfError> {
        self.prev_result.as_ref().ok_or(ConfError::Missing {
            field: "prevResult",
            expected: "must be the result of the whole chain's ADD",
        })
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: log::LevelFilter::Info,
            file: None,
        }
    }
}

fn version(file: &Field<'_>, raw: &Map<String, Value>) -> Result<SpecVersion, ConfError> {
    if file.get::<String>("cniVersion")?.is_none() {
        return Err(ConfError::NoVersion);
    }
    let version = version_text(raw);
    SpecVersion::parse(version).ok_or_else(|| ConfError::Version(version.to_owned()))
}

fn name(file: &Field<'_>) -> Result<String, ConfError> {
    let expected = "must be the network's name: a letter or digit, then these and _ . -";
    let name: String = file.get("name")?.ok_or(ConfError::Missing {
        field: "name",
        expected,
    })?;
    if !is_identifier(&name) || name.len() > MAX_IDENTIFIER {
        return Err(file.at("name").wrong(expected).into());
    }
    Ok(name)
}

fn log_settings(file: &Field<'_>) -> Result<Log, Wrong> {
    use log::LevelFilter as Level;
    let log = file.object("log")?;
    let levels = [
        ("off", Level::Off),
        ("error", Level::Error),
        ("warn", Level::Warn),
        ("info", Level::Info),
        ("debug", Level::Debug),
        ("trace", Level::Trace),
    ];
    Ok(Log {
        level: log
            .choice("level", &levels)?
            .unwrap_or(Log::default().level),
        file: log.get("file")?.map(|AbsolutePath(path)| path),
    })
}

fn prev_result(file: &Field<'_>) -> Result<Option<Value>, Wrong> {
    Ok(file.object("prevResult")?.value().cloned())
}

/// The names that the list has, the specification's and the one of libcni before 1.2.1
/// (containernetworking/cni issue 1101).
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// The list. `null` is one without attachments: a slice of Go's that nothing was put into, as CRI-O
/// hands it over at its start on a node without pods.
fn valid_attachments(file: &Field<'_>) -> Result<Option<Vec<ValidAttachment>>, Wrong> {
    for name in VALID_ATTACHMENTS {
        let field = file.at(name);
        if !field.is_there() {
            continue;
        }
        let attachment = |element: &Field<'_>| {
            let text = |key: &str| Some(element.value()?.get(key)?.as_str()?.to_owned());
            Some(ValidAttachment {
                container: text("containerID")?,
                interface: text("ifname")?,
            })
        };
        let attachments: Option<_> = field.list()?.iter().map(attachment).collect();
        let must = "must list {\"containerID\", \"ifname\"} objects";
        return attachments.map(Some).ok_or_else(|| field.wrong(must));
    }
    let is_there = VALID_ATTACHMENTS.iter().any(|name| file.has(name));
    Ok(is_there.then(Vec::new))
}
