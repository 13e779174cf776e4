// SPDX-License-Identifier: Apache-2.0
//! The fields of the network configuration that every plugin reads.

use crate::{
    Mistakes, SpecVersion,
    environment::{MAX_IDENTIFIER, is_identifier},
    version::SUPPORTED,
};
use conf_reader::{AbsolutePath, Field, Wrong, json, one_line, wrong::Kind};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The checked fields that the configuration of every plugin has.
#[derive(Clone, Debug)]
pub struct Network {
    /// `cniVersion`
    pub version: SpecVersion,
    /// `name`
    pub name: String,
    /// `log`
    pub log: Log,
    /// Value of `prevResult`, unchanged.
    pub prev_result: Option<Value>,
    /// Value of `cni.dev/valid-attachments`, for GC. `None`: the runtime passed no list, so every attachment counts as
    /// valid.
    pub valid_attachments: Option<Vec<ValidAttachment>>,
}

/// `log`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// `level`
    pub level: log::LevelFilter,
    /// File to which the plugin writes the log in addition to standard error.
    pub file: Option<PathBuf>,
}

/// An attachment that the runtime lists as valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidAttachment {
    /// Container id.
    pub container: String,
    /// Value of `CNI_IFNAME`.
    pub interface: String,
}

/// An error in the network configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfError {
    /// Standard input is not a JSON object.
    #[error("the network configuration on standard input is not a JSON object: {0}")]
    NotJson(String),
    /// Standard input is a whole CNI list, instead of one plugin's configuration.
    #[error(
        "standard input is a whole CNI list: pass one element of plugins, with the list's cniVersion and name \
         (jq '{{cniVersion, name}} + .plugins[N]' FILE, N from 0)"
    )]
    List,
    /// `cniVersion` is missing. A missing version means 0.1.0 (specification, section 1).
    #[error(
        "cniVersion is missing, which means 0.1.0: set it in the list, from which the runtime copies it; supported are \
         {supported}",
        supported = versions()
    )]
    NoVersion,
    /// The plugin does not support the `cniVersion`.
    #[error("cniVersion {0:?} is not supported; supported are {supported}", supported = versions())]
    Version(String),
    /// The verb does not exist in the configuration's version.
    #[error("cniVersion {version} has no {verb}, which came with {since}")]
    Verb {
        /// The configuration's `cniVersion`.
        version: SpecVersion,
        /// The verb, as in `CNI_COMMAND`.
        verb: &'static str,
        /// First version that has the verb.
        since: SpecVersion,
    },
    /// A known field has an invalid value, or a value that the plugin does not support.
    #[error("{}", described(.0))]
    Wrong(#[from] Wrong),
    /// A required field is missing.
    #[error("{field} is missing: {expected}")]
    Missing {
        /// Name of the field.
        field: &'static str,
        /// The rule for the field's value.
        expected: &'static str,
    },
}

/// Returns the plugins' message for a wrong value.
fn described(wrong: &Wrong) -> String {
    if wrong.kind == Kind::Unsupported {
        return wrong.to_string();
    }
    let place = one_line(&wrong.place);
    let value = wrong.value.as_deref().unwrap_or("null");
    format!("{place}: {value} is not valid: {}", wrong.problem)
}

fn versions() -> String {
    SUPPORTED.map(SpecVersion::as_str).join(", ")
}

/// Decodes standard input, which must be a JSON object.
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

/// Returns the `cniVersion` of a configuration, or 0.1.0 if the field is missing or no string (specification, section
/// 1).
pub fn version_text(raw: &Map<String, Value>) -> &str {
    raw.get("cniVersion")
        .and_then(Value::as_str)
        .unwrap_or("0.1.0")
}

impl Network {
    /// Checks the fields that every plugin has. DEL ignores a wrong value of any field except `name`. GC ignores a
    /// wrong value of any field except `name` and the list of valid attachments ([`Mistakes`]).
    ///
    /// # Errors
    /// `raw` is a whole CNI list, or the verb of `mistakes` does not ignore a wrong value.
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

    /// Returns an error if the configuration's version is older than `since`. `since` is the first version that has
    /// `verb`.
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

    /// Returns `prevResult`. Returns an error if the configuration has none.
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
    let expected = "must be the network's name: a letter or digit first, and at most 200 letters, digits, _ . -";
    let name: String = file.get("name")?.ok_or(ConfError::Missing {
        field: "name",
        expected,
    })?;
    if !is_network_name(&name) {
        return Err(file.at("name").wrong(expected).into());
    }
    Ok(name)
}

/// Returns true if the plugins accept `name` as a network's name.
pub fn is_network_name(name: &str) -> bool {
    is_identifier(name) && name.len() <= MAX_IDENTIFIER
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

/// Keys of the list of valid attachments: the specification's key, and the key of libcni before 1.2.1
/// (containernetworking/cni issue 1101).
const VALID_ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

/// Returns the runtime's list of valid attachments. `null` counts as an empty list: Go marshals a nil slice as `null`,
/// and CRI-O sends `null` when it starts on a node without pods.
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
