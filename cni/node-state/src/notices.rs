// SPDX-License-Identifier: Apache-2.0
//! Warnings about a node on which pods start without a device or without RDMA netdevs. `--check-config` and the log
//! print them among the remarks, and `/readyz` prints them after its answer. `doctor` derives similar warnings from the
//! node's files.

use ::erdma::driver;
use daemon_conf::Conf;
use offer::Offer;
use rdma_netns::Inventory;

/// Returns the warnings, one sentence each.
pub fn notices(conf: &Conf, offers: &[Offer], inventory: &Inventory) -> Vec<String> {
    let unattached = unattached(conf, offers);
    let no_manager = no_connection_manager(offers, inventory);
    unattached.into_iter().chain(no_manager).collect()
}

/// Returns a warning about offered resources that the chain does not attach. There are two causes:
/// `chain.plugin.resources` lists other resources, or the daemon offered these resources only after its start.
fn unattached(conf: &Conf, offers: &[Offer]) -> Option<String> {
    let chain = conf.chain.as_ref()?;
    let names = chain.unattached(offers.iter().map(|it| &it.name));
    let (place, remedy) = match chain.names_resources {
        true => (
            "chain.plugin.resources",
            "add it there unless Multus attaches it, and restart the daemon",
        ),
        false => ("the entry of rdma-cni", "restart the daemon"),
    };
    (!names.is_empty()).then(|| {
        format!(
            "{} not in {place}: pods that request it start without RDMA netdevs; {remedy}, which reads chain at its \
             start",
            are(&names)
        )
    })
}

/// Returns a warning if an offered device could use `/dev/infiniband/rdma_cm`, and this file is not in place.
fn no_connection_manager(offers: &[Offer], inventory: &Inventory) -> Option<String> {
    let (problem, remedy) = offer::manager_fault(inventory)?;
    let mut devices = offers.iter().flat_map(|it| &it.devices);
    let has_use = devices.any(|it| driver::limit(inventory, &it.address).is_none());
    let remedy = match inventory.connection_manager {
        None => {
            "modprobe rdma_ucm, and for every boot add a line rdma_ucm to a .conf file below /etc/modules-load.d"
        }
        Some(_) => remedy,
    };
    has_use.then(|| {
        format!(
            "{problem}: programs that connect by rdma_cm fail in pods (in mode default of the eRDMA driver: all \
             programs that connect); {remedy}"
        )
    })
}

/// Joins names and verb: `rdma/a is` or `rdma/a, rdma/b are`.
fn are(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(", "))
}
