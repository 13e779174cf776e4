// SPDX-License-Identifier: Apache-2.0
//! Section `dra`, which a configuration file of any format can have. `docs/device-plugin-conf.md` describes its fields.

use super::{ResourceConf, ResourceName, name::is_label};
use ::dra::pool::LONGEST_TEXT;
use conf_reader::{Field, Wrong};
use serde::Deserialize;

pub(super) const FIELD: &str = "dra";

/// Default name of the DRA driver.
pub const DRIVER: &str = "hca.rdma";

/// Longest name of a driver in bytes: `DriverNameMaxLength` in `resource/v1/types.go`.
const LONGEST_DRIVER: usize = 63;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Section {
    driver_name: Option<DriverName>,
    resources: Option<Vec<ResourceName>>,
    metadata: Option<bool>,
    evict: Option<bool>,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct DriverName(String);

/// Configuration of the DRA driver. Kubernetes allocates the driver's resources by claims, and the device plugin does
/// not advertise these resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dra {
    /// Name of the DRA driver.
    pub driver: String,
    /// Resources that are allocated by claims. `None`: all resources of the file.
    pub resources: Option<Vec<ResourceName>>,
    /// True if containers get the metadata of their devices ([`metadata`](::dra::metadata)).
    pub metadata: bool,
    /// True if unhealthy devices get a taint by which Kubernetes evicts their pods.
    pub evict: bool,
}

impl Dra {
    /// Returns true if `resource` is allocated by claims.
    pub fn serves(&self, resource: &str) -> bool {
        let named = self.resources.as_ref();
        named.is_none_or(|named| named.iter().any(|it| it.as_str() == resource))
    }
}

impl TryFrom<String> for DriverName {
    type Error = String;

    /// Checks the driver's name like the API server: a DNS subdomain in lower case. The name is also the vendor in CDI
    /// names, and a vendor must begin with a letter (`ValidateVendorName` in CDI's `pkg/parser`).
    fn try_from(name: String) -> Result<Self, String> {
        let begins = name.starts_with(|it: char| it.is_ascii_lowercase());
        match begins && name.len() <= LONGEST_DRIVER && name.split('.').all(is_label) {
            true => Ok(Self(name)),
            false => Err(format!(
                "must be a domain of at most {LONGEST_DRIVER} lower-case letters, digits, - and ., which begins \
                 with a letter, as {DRIVER}, and is {name:?}"
            )),
        }
    }
}

/// Reads and checks the section of the configuration file `file`. `resources` are the resources of this file.
pub(super) fn read(file: &Field<'_>, resources: &[ResourceConf]) -> Result<Option<Dra>, Wrong> {
    let section: Option<Section> = file.get(FIELD)?;
    let section = section.map(|section| section.checked(&file.at(FIELD), resources));
    section.transpose()
}

impl Section {
    fn checked(self, field: &Field<'_>, all: &[ResourceConf]) -> Result<Dra, Wrong> {
        let list = field.at("resources");
        let resources = match self.resources {
            None => None,
            Some(named) if named.is_empty() => {
                let sentence = "must have at least one resource; remove this field to serve all resources of the file";
                return Err(list.refused(sentence));
            }
            Some(named) => {
                for (index, name) in named.iter().enumerate() {
                    let known = all.iter().any(|resource| resource.name == *name);
                    let must = match known {
                        false => "must be a resource of this file",
                        true if named[..index].contains(name) => "must appear only once",
                        true => continue,
                    };
                    return Err(list.element(index).wrong(must));
                }
                Some(named)
            }
        };
        let mut names = all.iter().map(|resource| &resource.name);
        let dra = Dra {
            driver: self
                .driver_name
                .map_or_else(|| DRIVER.to_owned(), |name| name.0),
            resources,
            metadata: self.metadata.unwrap_or(false),
            evict: self.evict == Some(true),
        };
        let is_long = |it: &&ResourceName| it.as_str().len() > LONGEST_TEXT;
        if let Some(long) = names.find(|it| is_long(it) && dra.serves(it.as_str())) {
            let sentence = format!(
                "{long} cannot be served by claims: a resource's name is an attribute of its devices, and has \
                 at most {LONGEST_TEXT} characters"
            );
            return Err(field.refused(sentence));
        }
        Ok(dra)
    }
}
