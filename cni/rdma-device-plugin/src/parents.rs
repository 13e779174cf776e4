//! Whether the NICs have the addresses that pods' addresses are made from, where `rdma-ipam` is
//! told `from: parent`: a pod with a NIC that has none does not start (104).

use crate::{conf::Chain, offer::Offer};
use rdma_netns::{Inventory, Kernel, Link, Linux};
use serde_json::Value;
use std::{collections::BTreeSet, net::IpAddr};

/// The resources that `rdma-cni` attaches where nobody says which.
const ATTACHED: [&str; 2] = ["rdma/hca", "aliyun/erdma"];

/// A NIC whose IPv6 prefix pods' addresses are to come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Parent {
    /// Its RDMA device.
    pub rdma: String,
    /// Its netdev, which may be a port of a bond.
    pub netdev: String,
}

/// The NICs of `offers` that are to have an IPv6 address, by `chain.plugin.ipam`.
pub fn parents(chain: Option<&Chain>, offers: &[Offer], inventory: &Inventory) -> Vec<Parent> {
    let Some(fields) = chain.map(|chain| chain.entry.fields()) else {
        return Vec::new();
    };
    let ipam = |key: &str| fields.get("ipam").and_then(|it| it.get(key)?.as_str());
    let is_wanted = ipam("type") == Some("rdma-ipam")
        && ipam("from") == Some("parent")
        && ipam("family") != Some("ipv4");
    if !is_wanted {
        return Vec::new();
    }
    let named = fields.get("resources").and_then(Value::as_array);
    let attached = |name: &str| match named {
        Some(named) => named.iter().any(|it| it == name),
        None => ATTACHED.contains(&name),
    };
    let offers = offers.iter().filter(|it| attached(it.name.as_str()));
    let parents: BTreeSet<Parent> = offers
        .flat_map(|offer| &offer.devices)
        .flat_map(|device| {
            let mut functions = inventory.functions.iter();
            let function = functions.find(|it| it.device.address == device.address);
            let netdevs = function.into_iter().flat_map(|it| &it.netdevs);
            netdevs.map(|netdev| Parent {
                rdma: device.hca.name.clone(),
                netdev: netdev.name.clone(),
            })
        })
        .collect();
    parents.into_iter().collect()
}

/// Those of them that have none, by the netdev that ought to: the bond, where it is a port. One
/// that is not among `links` is in a pod, and not judged.
pub fn without_ipv6(parents: &[Parent], links: &[Link]) -> Vec<Parent> {
    let lacking = parents.iter().filter_map(|parent| {
        let own = links.iter().find(|it| *it.name == *parent.netdev)?;
        let master = links.iter().find(|it| Some(it.index) == own.master);
        let link = master.filter(|it| it.is_bond()).unwrap_or(own);
        let mut addresses = link.addresses.iter();
        let has_one = addresses.any(|it| matches!(it.ip, IpAddr::V6(_)) && it.names_a_network());
        (!has_one).then(|| Parent {
            rdma: parent.rdma.clone(),
            netdev: link.name.to_string(),
        })
    });
    // the ports of a bond, once
    let lacking: BTreeSet<Parent> = lacking.collect();
    lacking.into_iter().collect()
}

/// The same, of this node now. Reads the kernel's state, where there is something to ask.
pub async fn lacking(parents: Vec<Parent>) -> Vec<Parent> {
    if parents.is_empty() {
        return Vec::new();
    }
    let look = move || match Linux::new().observe(None) {
        Ok(observed) => without_ipv6(&parents, &observed.host.links),
        Err(error) => {
            log::debug!("which NICs have an IPv6 address is not known: {error}");
            Vec::new()
        }
    };
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

/// What is said of one.
pub fn remark(parent: &Parent) -> String {
    let Parent { rdma, netdev } = parent;
    format!(
        "{netdev} ({rdma}) has no global IPv6 address, which chain.plugin.ipam wants to make pods' \
         addresses from: pods with it do not start on this node (104) until it has one; pods with \
         hostNetwork, and without RDMA, are as before"
    )
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
}
