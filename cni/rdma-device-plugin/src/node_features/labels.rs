// SPDX-License-Identifier: Apache-2.0
//! Labels of the node: a pure function of its offers.
//!
//! | label, after the prefix | value |
//! |---|---|
//! | `count` | number of the resources' NICs |
//! | `speed` | Gbit/s of the slowest NIC |
//! | `link-layer` | `ethernet`, `infiniband` or `mixed` |
//! | `mode` | sharing of the NICs: `shared`, `exclusive` or `mixed` |
//! | `bonds` | number of bonds among them |
//! | `vendor-<PCI vendor id>` | `true`, for each vendor |
//!
//! No label depends on health: a label that changes with a cable would move the pods that select by it.

use crate::{
    conf::name::{is_label, is_name},
    dra::pool::Netdevs,
    node::Node,
};
use ::dra::Nic;
use rdma_resources::Sharing;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Prefix in NFD's own namespace, for which its master needs no flag. NFD's own labels begin otherwise.
const PREFIX: &str = "feature.node.kubernetes.io/rdma-nics.";
const COUNT: &str = "count";
/// Labels that a newly started daemon cannot observe of a NIC in a pod.
const UNSEEN_IN_PODS: [&str; 2] = [SPEED, LINK_LAYER];
const SPEED: &str = "speed";
const LINK_LAYER: &str = "link-layer";
const MIXED: &str = "mixed";

/// Valid labels of a node, by their names after the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Returns the labels of `node`. `netdevs` remembers attributes of netdevs. Attributes that are not observable now
    /// are taken from `before`, as long as the number of NICs has not changed.
    pub(super) fn of(node: &Node, netdevs: &mut Netdevs, before: &Self) -> Self {
        let mut nics: BTreeMap<String, Nic> = BTreeMap::new();
        for offer in &node.offers {
            let own = netdevs.nics(offer, &node.inventory);
            nics.extend(own.into_iter().map(|nic| (nic.address.clone(), nic)));
        }
        let modes = node.offers.iter().map(|offer| match offer.sharing {
            Sharing::Shared => "shared",
            Sharing::Exclusive => "exclusive",
        });
        let nics: Vec<Nic> = nics.into_values().collect();
        let mut labels = Self::of_nics(&nics, modes);
        let are_as_many = labels.0.get(COUNT) == before.0.get(COUNT);
        for name in UNSEEN_IN_PODS.into_iter().filter(|_| are_as_many) {
            let is_unseen = nics.iter().any(|nic| match name {
                SPEED => nic.speed.is_none(),
                _ => nic.link_layer.is_none(),
            });
            if let (true, Some(value)) = (is_unseen, before.0.get(name)) {
                labels.put(name, value);
            }
        }
        labels
    }

    fn of_nics(nics: &[Nic], modes: impl Iterator<Item = &'static str>) -> Self {
        let mut labels = Self::default();
        labels.put(COUNT, &nics.len().to_string());
        if nics.is_empty() {
            return labels;
        }
        let speeds = nics.iter().filter_map(|nic| nic.speed);
        if let Some(slowest) = speeds.min() {
            labels.put(SPEED, &(slowest / 1000).to_string());
        }
        let layers = nics.iter().filter_map(|nic| nic.link_layer.as_deref());
        labels.put_one(LINK_LAYER, layers.collect());
        labels.put_one("mode", modes.collect());
        let bonds = nics.iter().filter(|nic| nic.bond.is_some()).count();
        labels.put("bonds", &bonds.to_string());
        for vendor in nics.iter().filter_map(|nic| nic.vendor.as_ref()) {
            labels.put(&format!("vendor-{vendor}"), "true");
        }
        labels
    }

    /// Parses the file; other lines are ignored.
    pub fn parse(text: &str) -> Self {
        let mut labels = Self::default();
        for line in text.lines() {
            if let Some((name, value)) = line
                .strip_prefix(PREFIX)
                .and_then(|line| line.split_once('='))
            {
                labels.put(name, value);
            }
        }
        labels
    }

    /// Adds the common value of all, or `mixed`.
    fn put_one(&mut self, name: &str, values: BTreeSet<&str>) {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(one), None) => self.put(name, one),
            (Some(_), Some(_)) => self.put(name, MIXED),
            (None, _) => {}
        }
    }

    /// Adds a label. An invalid one is left out: NFD's master would reject it.
    fn put(&mut self, name: &str, value: &str) {
        let key = format!("{PREFIX}{name}");
        match is_valid(&key, value) {
            true => drop(self.0.insert(name.to_owned(), value.to_owned())),
            false => log::debug!("{key}={value} is no label"),
        }
    }
}

/// Formats the file.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# of rdma-device-plugin --node-features\n")?;
        for (name, value) in &self.0 {
            writeln!(f, "{PREFIX}{name}={value}")?;
        }
        Ok(())
    }
}

/// Returns true if Kubernetes accepts the label (`IsQualifiedName` and `IsValidLabelValue` in
/// `apimachinery/pkg/util/validation`). `key` must have a prefix, as NFD requires.
pub fn is_valid(key: &str, value: &str) -> bool {
    const LONGEST_PREFIX: usize = 253;
    let Some((prefix, name)) = key.split_once('/') else {
        return false;
    };
    let is_domain = prefix.len() <= LONGEST_PREFIX && prefix.split('.').all(is_label);
    is_domain && is_name(name) && (value.is_empty() || is_name(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nic(address: &str) -> Nic {
        Nic {
            address: address.to_owned(),
            rdma: "mlx5_0".into(),
            netdev: Some("ens1".into()),
            bond: None,
            link_layer: Some("ethernet".into()),
            mtu: None,
            speed: Some(400_000),
            ipv6_prefix: None,
            ipv6_address: None,
            ipv4_address: None,
            hardware_address: None,
            firmware: None,
            driver: None,
            vendor: Some("15b3".into()),
            physical_function: None,
            numa_node: None,
            pcie_root: None,
            fault: None,
        }
    }

    #[track_caller]
    fn are(nics: &[Nic], modes: &[&'static str], expected: &[&str]) {
        let labels = Labels::of_nics(nics, modes.iter().copied());
        let text = labels.to_string();
        let lines: Vec<_> = text
            .lines()
            .filter_map(|it| it.strip_prefix(PREFIX))
            .collect();
        assert_eq!(lines, expected);
        assert_eq!(Labels::parse(&text), labels);
        for line in text.lines().filter(|it| !it.starts_with('#')) {
            let (key, value) = line.split_once('=').expect("a label");
            assert!(is_valid(key, value), "{line}");
        }
    }

    #[test]
    fn eight_alike() {
        let nics: Vec<_> = (0..8).map(|it| nic(&it.to_string())).collect();
        let expected = [
            "bonds=0",
            "count=8",
            "link-layer=ethernet",
            "mode=shared",
            "speed=400",
            "vendor-15b3=true",
        ];
        are(&nics, &["shared"], &expected);
    }

    #[test]
    fn a_few_that_differ() {
        let bond = Nic {
            bond: Some("bond0".into()),
            ..nic("0")
        };
        let slow = Nic {
            link_layer: Some("infiniband".into()),
            speed: Some(2_500),
            vendor: Some("1ded".into()),
            ..nic("1")
        };
        let unknown = Nic {
            link_layer: None,
            speed: None,
            vendor: Some("no vendor/".into()),
            ..nic("2")
        };
        let expected = [
            "bonds=1",
            "count=3",
            "link-layer=mixed",
            "mode=mixed",
            "speed=2",
            "vendor-15b3=true",
            "vendor-1ded=true",
        ];
        are(&[bond, slow, unknown], &["shared", "exclusive"], &expected);
        are(&[], &[], &["count=0"]);
    }

    #[test]
    fn only_labels_that_kubernetes_accepts_are_valid() {
        let long = "a".repeat(64);
        for (key, value, valid) in [
            ("feature.node.kubernetes.io/a", "", true),
            ("a.example/A_b-c.1", "1", true),
            ("a", "1", false),
            ("/a", "1", false),
            ("a.example/", "1", false),
            ("A.example/a", "1", false),
            ("a..example/a", "1", false),
            ("-a.example/a", "1", false),
            ("a.example/a/b", "1", false),
            ("a.example/a b", "1", false),
            ("a.example/-a", "1", false),
            ("a.example/a.", "1", false),
            ("a.example/a", "1 2", false),
            ("a.example/a", "é", false),
            ("a.example/a", "_1", false),
            ("a.example/a", &long, false),
            (&format!("a.example/{long}"), "1", false),
            (&format!("{}/a", "a".repeat(254)), "1", false),
        ] {
            assert_eq!(is_valid(key, value), valid, "{key}={value}");
        }
    }
}
