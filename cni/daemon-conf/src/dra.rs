// SPDX-License-Identifier: Apache-2.0
//! Section `dra`, which a configuration file of any format can have. `docs/device-plugin-conf.md` describes its fields.

use crate::{ResourceConf, ResourceName};
use ::dra::pool::LONGEST_TEXT;
use conf_reader::{Field, Wrong};
use network_conf::resource_name::is_subdomain;
use serde::{Deserialize, Deserializer, de::Error};

pub(super) const FIELD: &str = "dra";

/// Default name of the DRA driver.
pub const DRIVER: &str = "hca.rdma";

/// Longest name of a driver in bytes: `DriverNameMaxLength` in `resource/v1/types.go`.
const LONGEST_DRIVER: usize = 63;

/// Configuration of the DRA driver. Kubernetes allocates the driver's resources by claims, and the device plugin does
/// not advertise these resources.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dra {
    /// Name of the DRA driver.
    #[serde(rename = "driverName", deserialize_with = "driver")]
    pub driver: String,
    /// Resources that are allocated by claims. `None`: all resources of the file.
    pub resources: Option<Vec<ResourceName>>,
    /// True if containers get the metadata of their devices ([`MetadataNames`](::dra::record::MetadataNames)).
    #[serde(deserialize_with = "flag")]
    pub metadata: bool,
    /// True if unhealthy devices get a taint by which Kubernetes evicts their pods.
    #[serde(deserialize_with = "flag")]
    pub evict: bool,
}

/// Reads the driver's name, and checks it like the API server: a DNS subdomain in lower case. The name is also the
/// vendor in CDI names, and a vendor must begin with a letter (`ValidateVendorName` in CDI's `pkg/parser`).
fn driver<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = Option::deserialize(deserializer)?.unwrap_or_else(|| DRIVER.to_owned());
    let begins = name.starts_with(|it: char| it.is_ascii_lowercase());
    match begins && name.len() <= LONGEST_DRIVER && is_subdomain(&name) {
        true => Ok(name),
        false => Err(D::Error::custom(format!(
            "must be a domain of at most {LONGEST_DRIVER} characters which begins with a letter: parts of \
             lower-case letters, digits and - (not first or last), separated by dots, as {DRIVER}, and is {name:?}"
        ))),
    }
}

/// Reads a flag that is false if it is missing.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads and checks the section of the configuration file `file`. `resources` are the resources of this file.
pub(super) fn read(file: &Field<'_>, resources: &[ResourceConf]) -> Result<Option<Dra>, Wrong> {
    let dra: Option<Dra> = file.get(FIELD)?;
    if let Some(dra) = &dra {
        dra.check(&file.at(FIELD), resources)?;
    }
    Ok(dra)
}

impl Dra {
    /// Returns true if `resource` is allocated by claims.
    pub fn serves(&self, resource: &str) -> bool {
        let named = self.resources.as_ref();
        named.is_none_or(|named| named.iter().any(|it| it.as_str() == resource))
    }

    fn check(&self, field: &Field<'_>, all: &[ResourceConf]) -> Result<(), Wrong> {
        let list = field.at("resources");
        if self.resources.as_ref().is_some_and(Vec::is_empty) {
            let sentence = "must have at least one resource; remove this field to serve all resources of the file";
            return Err(list.refused(sentence));
        }
        let named = self.resources.as_deref().unwrap_or_default();
        for (index, name) in named.iter().enumerate() {
            let known = all.iter().any(|resource| resource.name == *name);
            let must = match known {
                false => "must be a resource of this file",
                true if named[..index].contains(name) => "must appear only once",
                true => continue,
            };
            return Err(list.element(index).wrong(must));
        }
        let mut names = all.iter().map(|resource| &resource.name);
        let is_long = |it: &&ResourceName| it.as_str().len() > LONGEST_TEXT;
        if let Some(long) = names.find(|it| is_long(it) && self.serves(it.as_str())) {
            let sentence = format!(
                "{long} cannot be served by claims: a resource's name is an attribute of its devices, and an \
                 attribute has at most {LONGEST_TEXT} characters; give the resource a shorter name"
            );
            return Err(field.refused(sentence));
        }
        Ok(())
    }
}
