// SPDX-License-Identifier: Apache-2.0
//! Checks that NICs have the IPv6 addresses from which `rdma-ipam` derives pods' addresses with `from: parent`. A pod
//! whose NIC has no such address does not start (error 104). If all these NICs of a node lack an address, the daemon
//! does not add `rdma-cni` to the chain.

use crate::{
    erdma::discover,
    hardware::{Hardware, HardwareError},
};
use ::erdma::instance;
use daemon_conf::{Chain, Conf};
use offer::{Offer, PreviousOffers, Unhealthy, offers};
use rdma_netns::{Inventory, Kernel, Link, Linux, ObserveError};
use std::{collections::BTreeSet, fmt, net::IpAddr, path::Path};

/// NIC from whose IPv6 prefix `rdma-ipam` derives pods' addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parent {
    /// Name of the RDMA device.
    pub rdma: String,
    /// Name of the NIC's netdev, which may be a port of a bond. For a resource with `parents`: name of the parent
    /// netdev.
    pub netdev: String,
}

/// Returns true if `chain.plugin.ipam` requires an IPv6 address on each NIC. The family `both` requires an address of
/// each family.
fn is_required(chain: &Chain) -> bool {
    let ipam = chain.entry.fields().get("ipam");
    let ipam = |key: &str| ipam.and_then(|it| it.get(key)?.as_str());
    ipam("type") == Some("rdma-ipam")
        && ipam("from") == Some("parent")
        && ipam("family") != Some("ipv4")
}

/// Returns the NICs of `offers` that need an IPv6 address.
pub fn parents(chain: Option<&Chain>, offers: &[Offer], inventory: &Inventory) -> Vec<Parent> {
    let Some(chain) = chain.filter(|it| is_required(it)) else {
        return Vec::new();
    };
    let offers = offers.iter().filter(|it| chain.attaches(it.name.as_str()));
    let devices = offers.flat_map(|offer| offer.devices.iter().map(move |it| (offer, it)));
    let parents: BTreeSet<Parent> = devices
        .flat_map(|(offer, device)| {
            let function = inventory.function(&device.address);
            let netdevs = function.into_iter().flat_map(|it| &it.netdevs);
            let own = netdevs
                .map(|it| it.name.clone())
                .filter(|_| !offer.has_parents);
            let names = device.parent.clone().into_iter().chain(own);
            names
                .map(|netdev| Parent {
                    rdma: device.hca.name.clone(),
                    netdev,
                })
                .collect::<Vec<_>>()
        })
        .collect();
    parents.into_iter().collect()
}

/// Returns the NICs of this node that need an IPv6 address, for programs without the daemon's offers. Reads sysfs only
/// if the configuration requires addresses.
///
/// # Errors
/// sysfs cannot be read.
pub fn of_node(
    conf: &Conf,
    hardware: &Hardware,
    state_dir: &Path,
) -> Result<Vec<Parent>, HardwareError> {
    if !conf.chain.as_ref().is_some_and(is_required) {
        return Ok(Vec::new());
    }
    let inventory = hardware.observe()?;
    let instance = instance::kept(state_dir);
    let hidden = discover(&conf.erdma, &inventory, instance.as_deref()).hidden_addresses();
    let previous = PreviousOffers::read(state_dir);
    let (offers, _) = offers(conf, &inventory, &hidden, &Unhealthy::default(), &previous);
    Ok(parents(conf.chain.as_ref(), &offers, &inventory))
}

/// Returns the NICs that lack an IPv6 address, each with the netdev that should have the address. For a port of a bond,
/// the bond should have it. Ignores a NIC whose netdev is not in `links`, because the netdev may be in a pod.
pub fn without_ipv6(parents: &[Parent], links: &[Link]) -> Vec<Parent> {
    let lacking = parents
        .iter()
        .filter_map(|parent| lacks(parent, links).flatten());
    // a set: the ports of one bond count once
    let lacking: BTreeSet<Parent> = lacking.collect();
    lacking.into_iter().collect()
}

/// Returns the netdev that lacks an IPv6 address: the NIC's netdev, or its bond. The inner value is `None` if no
/// address is missing. The outer value is `None` if `links` does not have the NIC's netdev.
fn lacks(parent: &Parent, links: &[Link]) -> Option<Option<Parent>> {
    let own = links.iter().find(|it| *it.name == *parent.netdev)?;
    let master = links.iter().find(|it| Some(it.index) == own.master);
    let link = master.filter(|it| it.is_bond()).unwrap_or(own);
    let mut addresses = link.addresses.iter();
    let has_one = addresses.any(|it| matches!(it.ip, IpAddr::V6(_)) && it.names_a_network());
    Some((!has_one).then(|| Parent {
        rdma: parent.rdma.clone(),
        netdev: link.name.to_string(),
    }))
}

/// Returns the reason not to add `rdma-cni` to the chain: all `parents` lack an IPv6 address. Returns `None` if
/// `parents` is empty, or if one of them has an address or may be in a pod.
pub fn blocker(parents: &[Parent], links: &[Link]) -> Option<String> {
    let lack = |parent| matches!(lacks(parent, links), Some(Some(_)));
    if parents.is_empty() || !parents.iter().all(lack) {
        return None;
    }
    let lacking = without_ipv6(parents, links);
    Some(format!(
        "no RDMA NIC of this node has a global IPv6 address, from which chain.plugin.ipam derives pods' addresses \
         ({}): the network's list was not changed, and only pods with hostNetwork have RDMA; give the NICs an \
         address, and the daemon adds rdma-cni; or, {FAMILY}",
        names(&lacking)
    ))
}

/// Returns the result of [`blocker`] for the kernel's present netdevs. Reads no netdevs if `parents` is empty.
pub fn blocker_now(parents: &[Parent]) -> Option<String> {
    blocker(parents, &links_for(parents))
}

/// Returns the result of [`without_ipv6`] for the kernel's present netdevs. Reads no netdevs if `parents` is empty.
pub async fn lacking(parents: Vec<Parent>) -> Vec<Parent> {
    if parents.is_empty() {
        return Vec::new();
    }
    let observe = move || without_ipv6(&parents, &links_for(&parents));
    tokio::task::spawn_blocking(observe)
        .await
        .unwrap_or_default()
}

/// Returns this node's netdevs. Returns an empty list if `parents` is empty, or if the kernel's netdevs cannot be read.
fn links_for(parents: &[Parent]) -> Vec<Link> {
    if parents.is_empty() {
        return Vec::new();
    }
    let observed = Linux::new().observe(None).map(|it| it.host.links);
    observed.unwrap_or_else(|error: ObserveError| {
        log::debug!("cannot observe which NICs have an IPv6 address: {error}");
        Vec::new()
    })
}

/// Formats a NIC as `bond0 (mlx5_bond_0)`.
impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.netdev, self.rdma)
    }
}

/// Advice for NICs that have only IPv4 addresses.
const FAMILY: &str = "if pods need only IPv4 addresses, set chain.plugin.ipam.family to ipv4";

/// Returns a sentence about `lacking`, the NICs without an IPv6 address. `None`: `lacking` is empty.
pub fn remark(lacking: &[Parent]) -> Option<String> {
    let have = match lacking {
        [] => return None,
        [_] => "has",
        _ => "have",
    };
    Some(format!(
        "{} {have} no global IPv6 address, from which chain.plugin.ipam derives pods' addresses: where rdma-cni is in \
         the chain, pods with these NICs do not start (104); give the NICs an IPv6 address, or, {FAMILY}; pods with \
         hostNetwork, and pods without RDMA, are not affected",
        names(lacking)
    ))
}

fn names(parents: &[Parent]) -> String {
    let names: Vec<String> = parents.iter().map(ToString::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn links() -> Vec<Link> {
        let link = |index: u32, name: &str, master: Option<u32>, kind: Option<&str>, ip: &str| {
            let own =
                json!({"ip": ip, "prefix": 64, "scope": if ip == "fe80::1" { 253 } else { 0 }});
            let link = json!({
                "index": index, "name": name, "mac": "02:00:00:00:00:01", "mtu": 1500, "up": true,
                "master": master, "kind": kind, "addresses": [own],
            });
            serde_json::from_value(link).expect("a link")
        };
        vec![
            link(1, "eth0", None, None, "2001:db8::1"),
            link(2, "eth1", None, None, "fe80::1"),
            link(3, "eth2", None, None, "10.0.0.1"),
            link(4, "eth3", Some(6), None, "fe80::1"),
            link(5, "eth4", Some(6), None, "fe80::1"),
            link(6, "bond0", None, Some("bond"), "fe80::1"),
            link(7, "eth5", Some(8), None, "fe80::1"),
            link(8, "bond1", None, Some("bond"), "2001:db8:1::1"),
        ]
    }

    #[test]
    fn a_nic_needs_a_global_address_and_a_port_its_bond() {
        let parent = |rdma: &str, netdev: &str| Parent {
            rdma: rdma.into(),
            netdev: netdev.into(),
        };
        let parents = [
            parent("mlx5_0", "eth0"),
            parent("mlx5_1", "eth1"),
            parent("mlx5_2", "eth2"),
            parent("mlx5_bond_0", "eth3"),
            parent("mlx5_bond_0", "eth4"),
            parent("mlx5_bond_1", "eth5"),
            parent("mlx5_9", "in-a-pod"),
        ];
        let expected = [
            parent("mlx5_1", "eth1"),
            parent("mlx5_2", "eth2"),
            parent("mlx5_bond_0", "bond0"),
        ];
        assert_eq!(without_ipv6(&parents, &links()), expected);
    }

    #[test]
    fn only_nics_that_all_lack_an_address_block_the_chain() {
        let blocker = |netdevs: &[&str]| {
            let parent = |netdev: &&str| Parent {
                rdma: format!("mlx5_{netdev}"),
                netdev: (*netdev).into(),
            };
            let parents: Vec<Parent> = netdevs.iter().map(parent).collect();
            blocker(&parents, &links())
        };
        for none in [
            &[] as &[&str],
            &["eth0"],
            &["eth1", "eth0"],
            &["eth1", "eth5"],
            &["eth1", "in-a-pod"],
            &["in-a-pod"],
        ] {
            assert_eq!(blocker(none), None, "{none:?}");
        }
        let why = blocker(&["eth1", "eth2", "eth3"]).expect("hindered");
        let named = "(eth1 (mlx5_eth1), eth2 (mlx5_eth2), bond0 (mlx5_eth3))";
        assert!(why.contains(named), "{why}");
        assert!(
            why.contains("set chain.plugin.ipam.family to ipv4"),
            "{why}"
        );
    }

    #[test]
    fn nics_without_an_address_are_in_one_sentence_that_names_the_setting() {
        let parents: Vec<Parent> = (0..8)
            .map(|number| Parent {
                rdma: format!("mlx5_{number}"),
                netdev: format!("eth{number}"),
            })
            .collect();
        let remark = remark(&parents).expect("a sentence");
        for parent in &parents {
            assert_eq!(remark.matches(&parent.to_string()).count(), 1, "{remark}");
        }
        let setting = "set chain.plugin.ipam.family to ipv4";
        assert_eq!(remark.matches(setting).count(), 1, "{remark}");
        assert_eq!(super::remark(&[]), None);
    }
}
