// SPDX-License-Identifier: Apache-2.0
//! `chain.plugin`, checked by the readers of the plugins that get it. A field that they ignore is an error here, since
//! this is the daemon's own configuration.

use cni_protocol::{ConfError, Environment};
use conf_reader::{Field, Wrong, nearest};
use network_conf::fields;
use rdma_ipam::conf::{FIELDS, Plan, RANGE_FIELDS, ROUTE_FIELDS};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The IPAM plugin whose fields are known.
const OURS: &str = "rdma-ipam";

/// Checks `plugin`. `whole` is it as the plugin reads it, which has been done. The plugins tell upper from lower case,
/// whatever the format of the file.
pub(super) fn check(plugin: &Field<'_>, whole: &Map<String, Value>) -> Result<(), Wrong> {
    let plugin = &plugin.clone().exact_case();
    let ipam = plugin.object("ipam")?;
    let kind: Option<String> = ipam.get("type")?;
    let kind = kind.filter(|it| !it.is_empty());
    if ipam.is_there() && kind.is_none() {
        let sentence =
            "is missing: it names the IPAM plugin, as rdma-ipam; leave ipam out for none";
        return Err(ipam.at("type").refused(sentence));
    }
    // another IPAM plugin may have fields of its own beside ipam, as calico-ipam has
    let is_foreign = kind.as_deref().is_some_and(|it| it != OURS);
    known(plugin, fields::TOP, is_foreign)?;
    for (name, names) in fields::INNER {
        known(&plugin.at(name), names, false)?;
    }
    if is_foreign || kind.is_none() {
        return Ok(());
    }
    known(&ipam, FIELDS, false)?;
    for set in ipam.at("ranges").list()? {
        let ranges = if set.is_list() {
            set.list()?
        } else {
            Vec::new()
        };
        for range in ranges {
            known(&range, RANGE_FIELDS, false)?;
        }
    }
    for route in ipam.at("routes").list()? {
        known(&route, ROUTE_FIELDS, false)?;
    }
    let gets_ranges = plugin.at("capabilities").at("ipRanges");
    let gets_ranges = gets_ranges.value() == Some(&Value::Bool(true));
    match plan(whole) {
        Err(ConfError::Missing {
            field: "ipam.ranges",
            ..
        }) if gets_ranges => Ok(()),
        Err(error) => Err(plugin.refused(error.to_string())),
        Ok(()) => Ok(()),
    }
}

/// As `rdma-ipam` reads it.
fn plan(whole: &Map<String, Value>) -> Result<(), ConfError> {
    let environment = Environment {
        command: cni_protocol::Command::Status,
        target: None,
        args: BTreeMap::new(),
        path: Vec::new(),
        all: BTreeMap::new(),
    };
    Plan::parse(whole, &environment).map(|_| ())
}

/// Refuses a field that is none of `names`; where `others` may be, only one that looks like one of them.
fn known(object: &Field<'_>, names: &[&str], others: bool) -> Result<(), Wrong> {
    for name in object.unknown(names) {
        let field = object.at(name);
        match nearest(name, names) {
            Some(meant) => {
                return Err(field.refused(format!("not known: did you mean {meant}?")));
            }
            None if others => {}
            None => {
                let names = names.join(", ");
                return Err(field.refused(format!("not known; the fields here are {names}")));
            }
        }
    }
    Ok(())
}
