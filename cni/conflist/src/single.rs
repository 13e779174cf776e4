// SPDX-License-Identifier: Apache-2.0
//! A file with one plugin's configuration (`.conf`, `.json`), and the list that this project makes from it.
//!
//! The file stays unchanged. The list is a new file beside it. The list's name sorts just before the file's name, so
//! the runtime uses the list: for `10-net.conf`, the list is `10-net+rdma-cni.conflist`.

use crate::{
    Entry, TYPES,
    list::{Broken, List, Ours, Position, Refused, cluster_network, delegate, missing, text_of},
    members::Members,
    style::newline_of,
};
use serde_json::{Map, Value};

/// Suffix of a list that this project made from a single configuration.
pub const SUFFIX: &str = "+rdma-cni.conflist";

/// The configuration of one plugin.
#[derive(Debug)]
pub struct Single<'a> {
    text: &'a str,
    name: String,
    version: Option<String>,
    kind: String,
    twice: bool,
    configuration: Map<String, Value>,
}

impl<'a> Single<'a> {
    /// Parses `text` by the rules of libcni's `ConfFromBytes`.
    ///
    /// # Errors
    /// A runtime would refuse the configuration.
    pub fn parse(text: &'a str) -> Result<Self, Broken> {
        let syntax = |error: serde_json::Error| Broken::Syntax {
            problem: error.to_string(),
        };
        let members = Members::parse(text).map_err(syntax)?;
        let configuration = serde_json::from_str(text).map_err(syntax)?;
        let kind = text_of(members.get("type"), "type")?.filter(|kind| !kind.is_empty());
        Ok(Self {
            text,
            name: text_of(members.get("name"), "name")?.unwrap_or_default(),
            version: text_of(members.get("cniVersion"), "cniVersion")?,
            kind: kind.ok_or_else(|| missing("type"))?,
            twice: members.twice().is_some(),
            configuration,
        })
    }

    /// Returns the network's name, which may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the plugin's type.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns `cniVersion`, if the configuration has one.
    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Returns all fields of the configuration.
    pub(crate) fn configuration(&self) -> &Map<String, Value> {
        &self.configuration
    }

    /// Returns true if this project made `list` from this configuration.
    pub(crate) fn is_source_of(&self, list: &List<'_>) -> bool {
        list.begins_with(&self.name, self.version(), &self.configuration)
    }

    /// Returns the network that Multus calls (`clusterNetwork`), as a path or a name.
    pub(crate) fn cluster_network(&self) -> Option<String> {
        cluster_network(&self.configuration)
    }

    /// Returns our plugin's entry, which is this configuration itself or a delegate of Multus.
    pub fn ours(&self) -> Option<Ours> {
        if TYPES.contains(&self.kind.as_str()) {
            return Some(Ours {
                place: Position::Plugin(0),
                configuration: self.configuration.clone(),
            });
        }
        Some(Ours {
            place: Position::Delegate(0),
            configuration: delegate(&Value::Object(self.configuration.clone()))?,
        })
    }

    /// Returns the text of a list with this plugin and `entry`. The list gets the plugin's name and version.
    ///
    /// # Errors
    /// The configuration has a field twice, or the chain would not work with our plugin.
    pub fn list(&self, entry: &Entry) -> Result<String, Refused> {
        if self.twice {
            let members = Members::parse(self.text).ok();
            let field = members.as_ref().and_then(Members::twice);
            return Err(Refused::Twice {
                place: "the configuration".into(),
                field: field.unwrap_or_default().to_owned(),
            });
        }
        let line = self.text.find('\n').map_or("", |at| &self.text[..=at]);
        let newline = newline_of(line);
        let quoted = |text: &str| Value::from(text).to_string();
        let version = match &self.version {
            Some(version) => format!("  \"cniVersion\": {},{newline}", quoted(version)),
            None => String::new(),
        };
        let name = quoted(&self.name);
        // JSON strings contain no raw line breaks (RFC 8259, section 7)
        let plugin = self.text.trim().replace('\n', "\n    ");
        let list = format!(
            "{{{newline}{version}  \"name\": {name},{newline}  \"plugins\": [{newline}    \
             {plugin}{newline}  ]{newline}}}{newline}"
        );
        let parsed = List::parse(&list);
        debug_assert!(parsed.is_ok(), "a list of a plugin: {parsed:?}");
        match parsed {
            Ok(parsed) => Ok(parsed.with(entry, false)?.unwrap_or_else(|| list.clone())),
            Err(_) => Ok(list),
        }
    }
}

/// Returns the name of the list that is made from the single configuration `file`.
pub fn list_name(file: &str) -> String {
    format!("{}{SUFFIX}", stem(file))
}

/// Returns true if `list` is the file name of the list that is made from the single configuration `file`.
pub fn is_from(list: &str, file: &str) -> bool {
    list.strip_suffix(SUFFIX) == Some(stem(file)) && !file.ends_with(".conflist")
}

fn stem(file: &str) -> &str {
    file.rfind('.').map_or(file, |at| &file[..at])
}
