// SPDX-License-Identifier: Apache-2.0
//! The configuration file: JSON or YAML in one of several formats, and the rules that apply to all formats.

use crate::{CONNECTION_MANAGER, Conf, FABRIC, Flags, Parsed, ResourceConf, chain, foreign, own};
use anyhow::{Result, anyhow};
use conf_reader::{Field, Wrong, one_line};
use serde_json::Value;
use std::path::Path;

impl Conf {
    /// Reads the file and then applies the flags, which override values of the file. Without a file, the flags override
    /// the defaults.
    ///
    /// # Errors
    /// The file cannot be read, or has an error.
    pub fn load(file: Option<&Path>, flags: &Flags) -> Result<Parsed> {
        let mut parsed = match file {
            Some(file) => Self::read(file)?,
            None => flags.alone(),
        };
        flags.apply(&mut parsed);
        Ok(parsed)
    }

    /// Reads and parses the file.
    pub fn read(file: &Path) -> Result<Parsed> {
        Self::parse(&text_of(file)?, file)
    }

    /// Reads the file for `install`, which also accepts a file that has only `chain`.
    ///
    /// # Errors
    /// The file cannot be read, or has an error.
    pub fn read_for_install(file: &Path) -> Result<Parsed> {
        Self::parse_as(&text_of(file)?, file, true)
    }

    /// Parses `text`, the content of `file`.
    pub fn parse(text: &str, file: &Path) -> Result<Parsed> {
        Self::parse_as(text, file, false)
    }

    fn parse_as(text: &str, file: &Path, chain_suffices: bool) -> Result<Parsed> {
        let value = value_of(text, file)?;
        let failed = |found: &str| {
            anyhow!(
                "{file:?}: {found}; the file must have a field of exactly one format: resources or erdma \
                 (rdma-device-plugin), mode (k8s-rdma-sriov-dev-plugin), configList (k8s-rdma-shared-dev-plugin), \
                 resourceList (sriov-network-device-plugin)"
            )
        };
        let object = value
            .as_object()
            .ok_or_else(|| failed("the file is not an object"))?;
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
                let found = format!("{mark} and {other} belong to different formats");
                return Err(failed(&found));
            }
            [] if own.has(chain::FIELD) && chain_suffices => (&own, own::read_chain),
            [] => {
                let is_mark = |key: &str| {
                    let mut formats = formats.iter();
                    formats.any(|(file, marks, _)| !file.unknown(marks).contains(&key))
                };
                let mut keys = object.iter();
                let null = keys.find(|(key, value)| value.is_null() && is_mark(key));
                let keys: Vec<&str> = object.keys().map(String::as_str).collect();
                return Err(failed(&match (null, keys.as_slice()) {
                    (Some((key, _)), _) => format!("{key} is null, which counts as missing"),
                    _ if own.has(chain::FIELD) => {
                        "only rdma-device-plugin install accepts chain alone".to_owned()
                    }
                    (None, []) => "the object has no fields".to_owned(),
                    (None, keys) => format!(
                        "no field determines the format (fields: {})",
                        one_line(&keys.join(", "))
                    ),
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
        parsed.map_err(|wrong| anyhow!("{file:?}: {wrong}"))
    }
}

fn text_of(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|error| anyhow!("cannot read {file:?}: {error}"))
}

/// Checks the rules that apply to every format.
fn checked(conf: &Conf) -> Result<(), Wrong> {
    for (index, resource) in conf.resources.iter().enumerate() {
        let before = &conf.resources[..index];
        let refused = |sentence: String| Err(Wrong::of(&resource.place, sentence));
        if let Some(same) = before.iter().find(|other| other.name == resource.name) {
            return refused(format!(
                "the resource {} is in {} already; give one of the two another name",
                resource.name, same.place
            ));
        }
        if conf.fabric && resource.name.as_str() == CONNECTION_MANAGER {
            return refused(format!(
                "{FABRIC} adds the resource {CONNECTION_MANAGER}; give this resource another name, or leave {FABRIC} out"
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

/// Parses JSON if the text starts with `{` or `[`, and YAML otherwise. The JSON parser reports better errors than the
/// YAML parser.
fn value_of(text: &str, file: &Path) -> Result<Value> {
    let empty = || {
        anyhow!(
            "{file:?} is empty; write which resources the node offers, or {{\"mode\":\"hca\"}} for rdma/hca"
        )
    };
    let text = text.trim_start_matches('\u{feff}');
    let start = text.trim_start();
    if start.is_empty() {
        return Err(empty());
    }
    if start.starts_with(['{', '[']) {
        return serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            anyhow!("{file:?}, line {line}, column {column}: the file is not valid JSON: {error}")
        });
    }
    let value: Value = serde_saphyr::from_str(text).map_err(|error| {
        let location = error.location();
        let line = location.as_ref().map_or(1, |location| location.line());
        let column = location.as_ref().map_or(1, |location| location.column());
        let problem = error.without_snippet();
        anyhow!("{file:?}, line {line}, column {column}: the file is not valid YAML: {problem}")
    })?;
    if value.is_null() {
        return Err(empty());
    }
    Ok(value)
}
