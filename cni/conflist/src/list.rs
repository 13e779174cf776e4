// SPDX-License-Identifier: Apache-2.0
//! One list: its plugins, and its text after our entry was added or removed.
//!
//! The daemon adds our entry as the last one, so earlier plugins get the result that they expect. At DEL the runtime
//! calls the plugins from last to first, so `rdma-cni` restores the rails before another plugin removes the pod's own
//! network.

use crate::{
    Entry, TYPE, TYPES,
    members::{Members, span},
    style::Style,
};
use cni_protocol::{
    SpecVersion, conf::is_network_name, environment::MAX_IDENTIFIER, version::SUPPORTED,
};
use serde_json::{Map, Value, value::RawValue};
use std::{fmt, ops::Range};

/// The reason why a runtime cannot use a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The text is not a JSON object.
    #[error("it is not a valid JSON object: {problem}")]
    Syntax {
        /// Message of the parser, with line and column.
        problem: String,
    },
    /// A required field is missing.
    #[error("{field} is missing{}", extension(field))]
    Missing {
        /// Full name of the field, such as `name` or `plugins[1].type`.
        field: String,
    },
    /// A field has an invalid value.
    #[error("{field} {problem}")]
    Value {
        /// Full name of the field, such as `plugins[1].type`.
        field: String,
        /// The problem, such as `must be a string`.
        problem: &'static str,
    },
    /// The file is larger than containerd reads.
    #[error("it has {size} bytes, more than the 2 MiB that containerd reads")]
    Large {
        /// Size of the file, bytes.
        size: u64,
    },
    /// The file cannot be read.
    #[error("it cannot be read: {problem}")]
    Unreadable {
        /// Message of the system.
        problem: String,
    },
}

/// Returns advice about the file's extension, because runtimes distinguish lists from single configurations by the
/// extension.
fn extension(field: &str) -> &'static str {
    match field {
        "plugins" => " (a file with one plugin ends with .conf)",
        "type" => " (a file with a list of plugins ends with .conflist)",
        _ => "",
    }
}

/// The reason why the daemon cannot edit a list that runtimes can use, or add a file to a network's own directory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// An object has a field twice.
    #[error("{place} has {field:?} twice; keep only one")]
    Twice {
        /// Path of the object: `the list`, `plugins[0]`.
        place: String,
        /// Name of the field.
        field: String,
    },
    /// Our plugin does not support the version of the list.
    #[error(
        "cniVersion {version}; {TYPE} supports {}: set one of these in the list",
        SUPPORTED.map(SpecVersion::as_str).join(", ")
    )]
    Version {
        /// The problem: `is 0.2.0` or `is missing`.
        version: String,
    },
    /// The network's name is invalid.
    #[error(
        "name {name:?} is not valid; it must match [a-zA-Z0-9][a-zA-Z0-9_.-]*, with at most {MAX_IDENTIFIER} characters"
    )]
    Name {
        /// The name in the list.
        name: String,
    },
    /// Without our plugin, the list would have no plugin.
    #[error(
        "{TYPE} is the only plugin of the list, and a list without plugins is not valid; remove the file"
    )]
    Alone,
    /// All plugins are in the network's own directory, and perhaps the runtime does not call them at DEL.
    #[error(
        "the list has no plugins, and {TYPE} in the network's own directory works only with containerd; move the \
         network's plugins into the list"
    )]
    Bare,
    /// The network's own directory cannot have the entry, for this reason.
    #[error("{0}")]
    Directory(&'static str),
}

/// A parsed list.
#[derive(Debug)]
pub struct List<'a> {
    text: &'a str,
    name: String,
    version: Option<String>,
    versions: Vec<String>,
    only_inlined: bool,
    twice: Option<Refused>,
    elements: Vec<Element<'a>>,
}

#[derive(Debug)]
struct Element<'a> {
    kind: String,
    raw: &'a RawValue,
}

/// Position of our entry in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// Our entry is the plugin with this index in the list.
    Plugin(usize),
    /// Our entry is a delegate of the plugin with this index (Multus' `delegates`).
    Delegate(usize),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plugin(index) => write!(f, "plugins[{index}]"),
            Self::Delegate(index) => write!(f, "a delegate of plugins[{index}]"),
        }
    }
}

/// Our entry in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Ours {
    /// Position of the entry.
    pub place: Position,
    /// Fields of the entry.
    pub configuration: Map<String, Value>,
}

impl<'a> List<'a> {
    /// Parses `text` by the rules of libcni's `NetworkConfFromBytes`. Since version 1.3, libcni accepts a list without
    /// `plugins`: all its plugins are then in the network's own directory.
    ///
    /// # Errors
    /// A runtime would refuse the list.
    pub fn parse(text: &'a str) -> Result<Self, Broken> {
        let syntax = |error: serde_json::Error| Broken::Syntax {
            problem: error.to_string(),
        };
        let members = Members::parse(text).map_err(syntax)?;
        // `Members` does not check numbers and strings, so the whole text is parsed once
        serde_json::from_str::<Value>(text).map_err(syntax)?;
        let name = text_of(members.get("name"), "name")?.ok_or_else(|| missing("name"))?;
        let version = text_of(members.get("cniVersion"), "cniVersion")?;
        let versions = match members.get("cniVersions") {
            None => vec![],
            Some(raw) => serde_json::from_str(raw.get())
                .map_err(|_| wrong("cniVersions", "must be a list of strings"))?,
        };
        let only_inlined = members.get("loadOnlyInlinedPlugins").is_some_and(is_true);
        let plugins: Vec<&RawValue> = match members.get("plugins") {
            None if only_inlined => return Err(missing("plugins")),
            None => vec![],
            Some(raw) => {
                let plugins: Vec<_> = serde_json::from_str(raw.get())
                    .map_err(|_| wrong("plugins", "must be a list"))?;
                if plugins.is_empty() {
                    return Err(wrong("plugins", "must have at least one plugin"));
                }
                plugins
            }
        };
        let mut twice = members.twice().map(|field| Refused::Twice {
            place: "the list".into(),
            field: field.to_owned(),
        });
        let mut elements = vec![];
        for (index, raw) in plugins.into_iter().enumerate() {
            let place = format!("plugins[{index}]");
            let plugin =
                Members::parse(raw.get()).map_err(|_| wrong(&place, "must be an object"))?;
            let field = format!("{place}.type");
            let kind = text_of(plugin.get("type"), &field)?.filter(|kind| !kind.is_empty());
            let kind = kind.ok_or_else(|| missing(&field))?;
            twice = twice.or_else(|| {
                let field = plugin.twice()?.to_owned();
                Some(Refused::Twice { place, field })
            });
            elements.push(Element { kind, raw });
        }
        Ok(Self {
            text,
            name,
            version,
            versions,
            only_inlined,
            twice,
            elements,
        })
    }

    /// Returns the network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the list has this name and this `cniVersion`, and its first plugin has this configuration.
    pub(crate) fn begins_with(
        &self,
        name: &str,
        version: Option<&str>,
        configuration: &Map<String, Value>,
    ) -> bool {
        let first = self.elements.first().map(|it| object(it.raw));
        self.name == name
            && self.version.as_deref() == version
            && first.as_ref() == Some(configuration)
    }

    /// Returns the version of the CNI specification with which the runtime calls the plugins. This is the latest
    /// version that both the list and this program support, as in libcni's `NetworkConfFromBytes` since version 1.2.
    /// Without such a version, returns `cniVersion`, or `None` if the list has no `cniVersion`.
    pub fn version(&self) -> Option<&str> {
        let all = self.version.iter().chain(&self.versions);
        let known = all.filter_map(|it| Some((SpecVersion::parse(it)?, it.as_str())));
        let latest = known.max_by_key(|(version, _)| *version);
        latest.map(|(_, text)| text).or(self.version.as_deref())
    }

    /// Returns true if libcni 1.3 or later appends the plugins of the network's own directory.
    pub fn reads_directory(&self) -> bool {
        !self.only_inlined
    }

    /// Returns the plugins' types, in order.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.elements.iter().map(|element| element.kind.as_str())
    }

    /// Returns the network that Multus calls (`clusterNetwork`), as a path or a name.
    pub(crate) fn cluster_network(&self) -> Option<String> {
        let mut elements = self.elements.iter();
        elements.find_map(|element| cluster_network(&object(element.raw)))
    }

    /// Returns our entry, which is in the list itself or among the delegates of Multus.
    pub fn ours(&self) -> Option<Ours> {
        let direct = self.elements.iter().enumerate().find_map(|(index, it)| {
            let is_ours = TYPES.contains(&it.kind.as_str());
            is_ours.then(|| Ours {
                place: Position::Plugin(index),
                configuration: object(it.raw),
            })
        });
        direct.or_else(|| {
            self.elements.iter().enumerate().find_map(|(index, it)| {
                Some(Ours {
                    place: Position::Delegate(index),
                    configuration: delegate(&Value::Object(object(it.raw)))?,
                })
            })
        })
    }

    /// Returns the configurations of our plugin in the list itself, without the first.
    pub(crate) fn again(&self) -> Vec<Map<String, Value>> {
        let elements = self.elements.iter();
        let ours = elements.filter(|it| TYPES.contains(&it.kind.as_str()));
        ours.skip(1).map(|it| object(it.raw)).collect()
    }

    /// Returns the configuration of the first plugin of type [`TYPE`].
    pub fn own(&self) -> Option<Map<String, Value>> {
        self.all_own().next()
    }

    /// Returns the configurations of all plugins of type [`TYPE`], in order.
    pub fn all_own(&self) -> impl Iterator<Item = Map<String, Value>> {
        self.elements_named(TYPE)
            .map(|index| object(self.elements[index].raw))
    }

    /// Returns true if the list calls our plugin under another type than [`TYPE`], or as a delegate of Multus.
    pub(crate) fn is_called_otherwise(&self) -> bool {
        let mut elements = self.elements.iter();
        elements.any(|it| {
            let kind = it.kind.as_str();
            let is_other = kind != TYPE && TYPES.contains(&kind);
            is_other || delegate(&Value::Object(object(it.raw))).is_some()
        })
    }

    /// Returns the text with `entry` as the last plugin. If the list already has our plugin as type [`TYPE`], `entry`
    /// replaces its configuration, and duplicates are removed, but only with `update`. Returns `None` if the text needs
    /// no change, or if our plugin has another type or is a delegate of Multus.
    ///
    /// # Errors
    /// The list cannot be edited, or the chain would not work with our plugin.
    pub fn with(&self, entry: &Entry, update: bool) -> Result<Option<String>, Refused> {
        let mut named = self.elements_named(TYPE);
        if let Some(first) = named.next() {
            let others: Vec<_> = named.collect();
            let same = object(self.elements[first].raw) == *entry.fields();
            if !update || (same && others.is_empty()) {
                return Ok(None);
            }
            self.check()?;
            let at = self.span(first);
            let new = self.style(first.checked_sub(1)).write(&entry.value());
            let mut cuts: Vec<_> = others.iter().map(|it| (self.cut(*it), "")).collect();
            cuts.push((
                at,
                if same {
                    self.elements[first].raw.get()
                } else {
                    &new
                },
            ));
            return Ok(Some(self.replaced(cuts)));
        }
        if self.ours().is_some() {
            return Ok(None);
        }
        self.check()?;
        let last = self.elements.len().checked_sub(1).ok_or(Refused::Bare)?;
        let at = self.span(last);
        // the new element has the same separator as the element before it
        let before = self.text[..at.start]
            .trim_end_matches([' ', '\t', '\r', '\n'])
            .len();
        let gap = &self.text[before..at.start];
        let new = format!(",{gap}{}", self.style(Some(last)).write(&entry.value()));
        Ok(Some(self.replaced(vec![(at.end..at.end, &new)])))
    }

    /// Returns the text without the entries of type [`TYPE`]. Returns `None` if the list has no such entry.
    ///
    /// # Errors
    /// The list would have no plugin, or cannot be edited.
    pub fn without(&self) -> Result<Option<String>, Refused> {
        self.without_entries(&self.all_own().collect::<Vec<_>>())
    }

    /// Returns the text without the plugins of type [`TYPE`] whose configurations are in `entries`. Returns `None` if
    /// the list has no such plugin. Fails as [`without`](Self::without) does.
    pub(crate) fn without_entries(
        &self,
        entries: &[Map<String, Value>],
    ) -> Result<Option<String>, Refused> {
        let mut ours: Vec<_> = self.elements_named(TYPE).collect();
        ours.retain(|index| entries.contains(&object(self.elements[*index].raw)));
        if ours.is_empty() {
            return Ok(None);
        }
        if ours.len() == self.elements.len() {
            return Err(Refused::Alone);
        }
        self.unambiguous()?;
        let first_left = (0..)
            .find(|index| !ours.contains(index))
            .unwrap_or_default();
        let cut = |index: usize| match index < first_left {
            true => self.span(index).start..self.span(index + 1).start,
            false => self.cut(index),
        };
        let cuts = ours.iter().map(|index| (cut(*index), "")).collect();
        Ok(Some(self.replaced(cuts)))
    }

    /// Checks that the list can be edited, and that the chain would work with our plugin.
    ///
    /// # Errors
    /// An object has a field twice, or the list's name or version is unusable.
    pub(crate) fn check(&self) -> Result<(), Refused> {
        self.unambiguous()?;
        // libcni's `ValidateNetworkName` has no maximum length, but our plugin has one
        if !is_network_name(&self.name) {
            return Err(Refused::Name {
                name: self.name.clone(),
            });
        }
        let version = match (&self.version, self.versions.as_slice()) {
            (Some(version), _) if SpecVersion::parse(version).is_some() => return Ok(()),
            (None, versions) if versions.iter().any(|it| SpecVersion::parse(it).is_some()) => {
                return Ok(());
            }
            (Some(version), _) => format!("is {}", version.escape_debug()),
            (None, _) => "is missing, which means 0.1.0".to_owned(),
        };
        Err(Refused::Version { version })
    }

    fn unambiguous(&self) -> Result<(), Refused> {
        match &self.twice {
            Some(twice) => Err(twice.clone()),
            None => Ok(()),
        }
    }

    fn elements_named(&self, kind: &str) -> impl Iterator<Item = usize> {
        let elements = self.elements.iter().enumerate();
        elements.filter_map(move |(index, it)| (it.kind == kind).then_some(index))
    }

    /// Returns the layout (line breaks and spaces) of the element at `index`. Without an index, returns the layout of
    /// the second element, or of the only one.
    fn style(&self, index: Option<usize>) -> Style {
        let index = index.unwrap_or_else(|| usize::from(self.elements.len() > 1));
        let at = self.span(index);
        Style::of(self.text, at.start, &self.text[at.clone()])
    }

    fn span(&self, index: usize) -> Range<usize> {
        span(self.text, self.elements[index].raw)
    }

    /// Returns the range of the element at `index`, with the comma before it. The element must not be the first.
    fn cut(&self, index: usize) -> Range<usize> {
        self.span(index - 1).end..self.span(index).end
    }

    fn replaced(&self, mut parts: Vec<(Range<usize>, &str)>) -> String {
        parts.sort_by_key(|(range, _)| std::cmp::Reverse(range.start));
        let mut text = self.text.to_owned();
        for (range, new) in parts {
            text.replace_range(range, new);
        }
        text
    }
}

pub(crate) fn missing(field: &str) -> Broken {
    Broken::Missing {
        field: field.to_owned(),
    }
}

pub(crate) fn wrong(field: &str, problem: &'static str) -> Broken {
    Broken::Value {
        field: field.to_owned(),
        problem,
    }
}

pub(crate) fn text_of(raw: Option<&RawValue>, field: &str) -> Result<Option<String>, Broken> {
    raw.map(|raw| serde_json::from_str(raw.get()))
        .transpose()
        .map_err(|_| wrong(field, "must be a string"))
}

/// Returns true if libcni reads the field as true (`readBool` in `NetworkConfFromBytes()`), or refuses its value.
fn is_true(raw: &RawValue) -> bool {
    match serde_json::from_str(raw.get()) {
        Ok(Value::Bool(value)) => value,
        Ok(Value::String(text)) => !text.eq_ignore_ascii_case("false"),
        _ => true,
    }
}

/// Returns the object in `raw`, which an earlier step parsed as an object.
fn object(raw: &RawValue) -> Map<String, Value> {
    serde_json::from_str(raw.get()).unwrap_or_default()
}

/// Returns `clusterNetwork` of Multus' configuration.
pub(crate) fn cluster_network(plugin: &Map<String, Value>) -> Option<String> {
    plugin.get("clusterNetwork")?.as_str().map(str::to_owned)
}

/// Returns our entry among the `delegates` of a plugin's configuration, at any depth.
pub(crate) fn delegate(configuration: &Value) -> Option<Map<String, Value>> {
    let delegates = configuration.get("delegates")?.as_array()?;
    delegates.iter().find_map(|delegate| {
        let plugins = delegate.get("plugins").and_then(Value::as_array);
        let mut all = plugins.into_iter().flatten().chain([delegate]);
        all.find_map(|plugin| {
            let kind = plugin.get("type").and_then(Value::as_str);
            match kind.is_some_and(|kind| TYPES.contains(&kind)) {
                true => plugin.as_object().cloned(),
                false => self::delegate(plugin),
            }
        })
    })
}
