// SPDX-License-Identifier: Apache-2.0
//! Discovers the eRDMA NICs, and selects the NICs that the daemon uses. The result depends only on the configuration,
//! the hardware and the instance's id.

use ::erdma::Nic;
use daemon_conf::{Erdma, Exposed, Origin};
use offer::selects;
use rdma_netns::{DeviceAddress, Function, Inventory};
use std::collections::BTreeSet;

/// The eRDMA NICs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovery {
    /// NICs that the daemon uses, in the order of their addresses.
    pub nics: Vec<Nic>,
    /// NICs that `exposedLocalERIs` excludes, or may exclude while the instance's id is unknown. The daemon neither
    /// advertises nor configures these NICs.
    pub hidden: Vec<Nic>,
    /// True if the instance's id is unknown, and the daemon may use more NICs once the id is known.
    pub needs_instance: bool,
    /// Remarks on the configuration, one sentence each.
    pub remarks: Vec<String>,
}

/// Discovers the eRDMA NICs of `inventory`. `instance` is this instance's id. With `None`, NICs whose selection depends
/// on the id are hidden.
pub fn discover(conf: &Erdma, inventory: &Inventory, instance: Option<&str>) -> Discovery {
    let mut found = Discovery::default();
    for function in &inventory.functions {
        let Some(nic) = nic(conf, function, inventory) else {
            continue;
        };
        match exposure(&conf.exposed, &nic, instance) {
            Exposure::Yes => found.nics.push(nic),
            Exposure::No => found.hidden.push(nic),
            Exposure::Unknown => {
                found.needs_instance = true;
                found.hidden.push(nic);
            }
        }
    }
    found.remarks = remarks(conf, &found, instance);
    found
}

impl Discovery {
    /// Returns the addresses of the hidden NICs.
    pub fn hidden_addresses(&self) -> BTreeSet<DeviceAddress> {
        let hidden = self.hidden.iter();
        hidden.map(|nic| nic.address.clone()).collect()
    }
}

fn nic(conf: &Erdma, function: &Function, inventory: &Inventory) -> Option<Nic> {
    let hca = function.hcas.first()?;
    if !selects(&conf.devices, function, inventory) {
        return None;
    }
    let netdev = function.netdevs.first();
    Some(Nic {
        rdma: hca.name.clone(),
        address: function.device.address.clone(),
        netdev: netdev.map(|netdev| netdev.name.clone()),
        mac: netdev.map(|netdev| netdev.mac.clone()),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exposure {
    Yes,
    No,
    /// The daemon cannot decide: the use of the NIC depends on the instance's id, which is unknown.
    Unknown,
}

/// Decides whether the daemon uses `nic`. A pattern for every instance applies only if no other pattern matches this
/// instance. The eRDMA agent has the same rule.
fn exposure(patterns: &[Exposed], nic: &Nic, instance: Option<&str>) -> Exposure {
    if patterns.is_empty() {
        return Exposure::Yes;
    }
    let any = |patterns: &[&Exposed]| patterns.iter().any(|it| has(it, nic));
    if let Some(patterns) = applicable(patterns, instance) {
        return match any(&patterns) {
            true => Exposure::Yes,
            false => Exposure::No,
        };
    }
    // the id is unknown: this instance may match any of the patterns that name an instance, or none of them
    let (every, named): (Vec<&Exposed>, Vec<&Exposed>) =
        patterns.iter().partition(|it| it.is_for_every_instance());
    let mut answers = named.iter().map(|it| has(it, nic));
    let otherwise = any(&every);
    match answers.all(|it| it == otherwise) {
        true if otherwise => Exposure::Yes,
        true => Exposure::No,
        false => Exposure::Unknown,
    }
}

fn has(pattern: &Exposed, nic: &Nic) -> bool {
    pattern.devices.iter().any(|device| device.fits(&nic.rdma))
}

/// Returns the patterns for this instance. `None`: the patterns depend on the instance's id, which is unknown.
fn applicable<'a>(patterns: &'a [Exposed], instance: Option<&str>) -> Option<Vec<&'a Exposed>> {
    let (every, named): (Vec<_>, Vec<_>) =
        patterns.iter().partition(|it| it.is_for_every_instance());
    if named.is_empty() {
        return Some(every);
    }
    let instance = instance?;
    let named = named.into_iter().filter(|it| it.instance.fits(instance));
    let ours: Vec<&Exposed> = named.collect();
    Some(if ours.is_empty() { every } else { ours })
}

fn remarks(conf: &Erdma, found: &Discovery, instance: Option<&str>) -> Vec<String> {
    let mut remarks = Vec::new();
    let all = || found.nics.iter().chain(&found.hidden);
    if all().next().is_none() {
        return remarks;
    }
    match (conf.origin, &conf.bring_up) {
        (Origin::Defaults, Some(_)) => remarks.push(
            "erdma is not in the configuration: unconfigured eRDMA NICs are brought up \
             with the defaults; erdma: {configureNICs: false} turns that off"
                .to_owned(),
        ),
        (Origin::Foreign, _) => remarks.push(
            "the daemon does not bring up eRDMA NICs, because this configuration format cannot request it; set \
             --local-eri-discovery, or erdma in the daemon's own format"
                .to_owned(),
        ),
        _ => {}
    }
    let ours = applicable(&conf.exposed, instance).unwrap_or_default();
    let ours = ours.into_iter();
    for pattern in ours.filter(|pattern| !all().any(|nic| has(pattern, nic))) {
        remarks.push(format!(
            "erdma.exposedLocalERIs: {:?} names no eRDMA NIC of this node",
            pattern.to_string()
        ));
    }
    remarks
}
