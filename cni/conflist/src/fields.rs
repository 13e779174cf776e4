// SPDX-License-Identifier: Apache-2.0
//! The fields of our entry and of its `ipam`. `rdma-cni` and `rdma-ipam` ignore unknown fields, as the CNI
//! specification requires. The daemon reports mistakes:
//!
//! - In the daemon's configuration, an unknown field is an error, unless a foreign IPAM plugin may read it.
//! - In an entry that an administrator wrote, an unknown field is an error only if its name resembles a known name.

use crate::{IPAM, entry::DETECT};
use cni_protocol::{Command, ConfError, Environment};
use conf_reader::{Field, Wrong, nearest, not_known};
use network_conf::fields;
use rdma_ipam::conf::{FIELDS, Plan, RANGE_FIELDS, ROUTE_FIELDS};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Fields that a runtime or the daemon writes. Users do not write them.
const NOT_THE_USERS: [&str; 5] = ["type", "name", "cniVersion", "prevResult", DETECT];

/// Determines which unknown fields are errors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    All,
    /// Unknown fields whose names resemble a known name.
    Misspelt,
}

/// Checks `chain.plugin` of the daemon's configuration. `whole`, the object that `rdma-cni` gets, was read without an
/// error.
///
/// # Errors
/// An unknown field, an `ipam` without `type`, or a value that `rdma-ipam` refuses.
pub fn check(plugin: &Field<'_>, whole: &Map<String, Value>) -> Result<(), Wrong> {
    known_fields(plugin, Unknown::All)?;
    ipam(whole).map_err(|error| plugin.refused(error.to_string()))
}

/// Returns the error for the first misspelt field of `entry`, or for an `ipam` without `type`.
pub fn misspelt(entry: &Map<String, Value>) -> Option<Wrong> {
    known_fields(&Field::root(entry), Unknown::Misspelt).err()
}

/// Reads `ipam` of `entry` like `rdma-ipam`, if its `type` is `rdma-ipam`. Ranges may be missing if the runtime passes
/// them (capability `ipRanges`).
///
/// # Errors
/// The error with which ADD would fail.
pub fn ipam(entry: &Map<String, Value>) -> Result<(), ConfError> {
    let root = Field::root(entry);
    if kind(&root) != Some(IPAM) {
        return Ok(());
    }
    let gets_ranges = root.at("capabilities").at("ipRanges");
    let gets_ranges = gets_ranges.value() == Some(&Value::Bool(true));
    let environment = Environment {
        command: Command::Status,
        target: None,
        args: BTreeMap::new(),
        path: Vec::new(),
        all: BTreeMap::new(),
    };
    match Plan::parse(entry, &environment) {
        Err(ConfError::Missing {
            field: "ipam.ranges",
            ..
        }) if gets_ranges => Ok(()),
        read => read.map(drop),
    }
}

fn kind<'a>(entry: &Field<'a>) -> Option<&'a str> {
    let kind = entry.at("ipam").at("type").value()?.as_str();
    kind.filter(|it| !it.is_empty())
}

/// Checks the names of fields. The plugins distinguish upper and lower case in every file format.
fn known_fields(entry: &Field<'_>, unknown: Unknown) -> Result<(), Wrong> {
    let entry = &entry.clone().exact_case();
    let ipam = entry.object("ipam")?;
    let kind = kind(entry);
    if ipam.is_there() && kind.is_none() {
        let sentence = "is missing: name the IPAM plugin, for example rdma-ipam, or remove ipam if rails get no \
                        addresses from IPAM";
        return Err(ipam.at("type").refused(sentence));
    }
    // another IPAM plugin may have fields outside of `ipam`, as calico-ipam has
    let is_foreign = kind.is_some_and(|it| it != IPAM);
    let beside = if is_foreign {
        Unknown::Misspelt
    } else {
        unknown
    };
    known(entry, fields::TOP, beside)?;
    for (name, names) in fields::INNER {
        known(&entry.at(name), names, unknown)?;
    }
    if is_foreign || kind.is_none() {
        return Ok(());
    }
    known(&ipam, FIELDS, unknown)?;
    for set in ipam.at("ranges").list()? {
        let ranges = if set.is_list() {
            set.list()?
        } else {
            Vec::new()
        };
        for range in ranges {
            known(&range, RANGE_FIELDS, unknown)?;
        }
    }
    for route in ipam.at("routes").list()? {
        known(&route, ROUTE_FIELDS, unknown)?;
    }
    Ok(())
}

/// Returns an error for a field whose name is not among `names`. `unknown` determines which unknown names are errors.
fn known(object: &Field<'_>, names: &[&str], unknown: Unknown) -> Result<(), Wrong> {
    let others = object.unknown(names).into_iter();
    let mut others = others.filter(|it| !NOT_THE_USERS.contains(it));
    let is_wrong = |it: &&str| unknown == Unknown::All || nearest(it, names).is_some();
    match others.find(is_wrong) {
        Some(name) => Err(object.at(name).refused(not_known(name, names))),
        None => Ok(()),
    }
}
