// SPDX-License-Identifier: Apache-2.0
//! Labels of the node: a pure function of offers, devices and earlier labels.
//!
//! | label without the prefix | value |
//! |---|---|
//! | `count` | number of NICs of all resources |
//! | `speed` | Gbit/s of the slowest NIC |
//! | `link-layer` | `ethernet`, `infiniband` or `mixed` |
//! | `mode` | sharing of the NICs: `shared`, `exclusive` or `mixed` |
//! | `bonds` | number of NICs whose netdev is a port of a bond |
//! | `vendor-<PCI vendor id>` | `true`, for each vendor |
//! | `switch-<number>` | switch of the NIC with this number; numbers from 0 by PCI address, and VFs count as their PF |
//! | `switches` | name of the set of switches; all nodes with the same set have the same name |
//! | `gpudirect` | how the NICs register the memory of GPUs: `dma-buf`, `peer-memory`, `none`, `unknown` or `mixed` |
//!
//! No label depends on health. A label that changes with a cable would change the nodes that a pod's node selector
//! matches.
//!
//! While the number of NICs stays the same, the labels of switches keep the values that the daemon received last. The
//! label `switches` exists only if the switches of all NICs are known.

use crate::dra::pool::Netdevs;
use ::dra::Nic;
use fnv::FnvHasher;
use network_conf::resource_name::{is_name, is_subdomain};
use node_state::node::Node;
use rdma_netns::Inventory;
use rdma_resources::Sharing;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::Hasher,
};

/// Prefix of the labels. It is in NFD's own namespace, so that NFD's master accepts the labels without a flag. NFD's
/// own labels begin with other prefixes.
const PREFIX: &str = "feature.node.kubernetes.io/rdma-nics.";
const COUNT: &str = "count";
/// Labels whose value a new daemon cannot determine while one of the NICs is in a pod.
const UNSEEN_IN_PODS: [&str; 2] = [SPEED, LINK_LAYER];
const SPEED: &str = "speed";
const LINK_LAYER: &str = "link-layer";
const MIXED: &str = "mixed";
const SWITCH: &str = "switch-";

/// Longest value of a label (`LabelValueMaxLength` in `apimachinery/pkg/util/validation`).
const LONGEST_VALUE: usize = 63;

/// Valid labels of a node, by name without the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Returns the labels of `node`. `netdevs` are the last known attributes of netdevs. If the number of NICs has not
    /// changed, copies the labels that are unknown at present from `before`.
    pub(super) fn of(node: &Node, netdevs: &mut Netdevs, before: &Self) -> Self {
        let mut nics: BTreeMap<String, Nic> = BTreeMap::new();
        for offer in &node.offers {
            let own = netdevs.nics(offer, &node.inventory, &node.switches);
            nics.extend(own.into_iter().map(|nic| (nic.address.clone(), nic)));
        }
        let modes = node.offers.iter().map(|offer| match offer.sharing {
            Sharing::Shared => "shared",
            Sharing::Exclusive => "exclusive",
        });
        let nics: Vec<Nic> = nics.into_values().collect();
        let mut labels = Self::of_nics(&nics, modes);
        if !nics.is_empty() {
            labels.put_one("gpudirect", gpudirect(&node.inventory));
        }
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
        if node.conf.lldp.is_some() {
            let known = before.0.iter().filter(|_| are_as_many);
            labels.add_switches(&nics, &known.collect());
        }
        labels
    }

    /// Adds the labels of the switches. Copies the labels of unknown switches from `before`.
    fn add_switches(&mut self, nics: &[Nic], before: &BTreeMap<&String, &String>) {
        let mut rails: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        for nic in nics {
            let rail = nic.physical_function.as_ref().unwrap_or(&nic.address);
            let switch = rails.entry(rail).or_default();
            *switch = switch.or(nic.switch.as_deref());
        }
        let mut all = BTreeSet::new();
        let count = rails.len();
        for (number, switch) in rails.into_values().enumerate() {
            let name = format!("{SWITCH}{number}");
            let before = before.get(&name).map(|it| (*it).clone());
            if let Some(value) = switch.map(value).or(before) {
                self.put(&name, &value);
                all.insert((number, value));
            }
        }
        if all.len() < count || count == 0 {
            return;
        }
        let set: BTreeSet<&str> = all.iter().map(|(_, value)| value.as_str()).collect();
        let set: Vec<&str> = set.into_iter().collect();
        let name = match set.as_slice() {
            [one] => (*one).to_owned(),
            some => format!("{}-switches-{:016x}", some.len(), hash(&some.join(","))),
        };
        self.put("switches", &name);
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

    /// Parses the labels of the daemon's file. Ignores other lines.
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

    /// Adds the label `name`. Its value is the one value in `values`, or `mixed` if `values` has several values. Adds
    /// no label if `values` is empty.
    fn put_one(&mut self, name: &str, values: BTreeSet<&str>) {
        let mut values = values.into_iter();
        match (values.next(), values.next()) {
            (Some(one), None) => self.put(name, one),
            (Some(_), Some(_)) => self.put(name, MIXED),
            (None, _) => {}
        }
    }

    /// Adds a label. Leaves out an invalid label, because NFD's master rejects it.
    fn put(&mut self, name: &str, value: &str) {
        let key = format!("{PREFIX}{name}");
        match is_valid(&key, value) {
            true => drop(self.0.insert(name.to_owned(), value.to_owned())),
            false => log::debug!("{key}={value} is not a valid label"),
        }
    }
}

/// Returns how the node's RDMA devices register the memory of the node's accelerators, such as `dma-buf` or `none`.
fn gpudirect(inventory: &Inventory) -> BTreeSet<&'static str> {
    let functions = inventory.functions.iter();
    let with_rdma = functions.filter(|function| function.hcas.iter().any(|hca| !hca.soft));
    let makers = || with_rdma.clone().map(|function| inventory.maker(function));
    let conditions = inventory.gpudirect.iter();
    let registrations = conditions.flat_map(|it| it.registrations(makers()));
    registrations.map(|(.., it)| it.name()).collect()
}

/// Formats the content of the label file.
impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("# Written by rdma-device-plugin --node-features\n")?;
        for (name, value) in &self.0 {
            writeln!(f, "{PREFIX}{name}={value}")?;
        }
        Ok(())
    }
}

/// Returns a switch's name as a label value. Replaces each invalid character by `_`. A value that would be too long or
/// empty ends in a hash of the whole name.
fn value(switch: &str) -> String {
    let letter = |it: char| match it {
        '-' | '.' | '_' => it,
        _ if it.is_ascii_alphanumeric() => it,
        _ => '_',
    };
    let is_end = |it: char| !it.is_ascii_alphanumeric();
    let flat: String = switch.chars().map(letter).collect();
    let flat = flat.trim_matches(is_end);
    if (1..=LONGEST_VALUE).contains(&flat.len()) {
        return flat.to_owned();
    }
    let hash = format!("{:016x}", hash(switch));
    let front = &flat[..flat.len().min(LONGEST_VALUE - hash.len() - 1)];
    format!("{front}-{hash}").trim_matches(is_end).to_owned()
}

/// Returns the FNV-1a hash, which is equal in every version and on every node.
fn hash(text: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Returns true if Kubernetes accepts the label (`IsQualifiedName` and `IsValidLabelValue` in
/// `apimachinery/pkg/util/validation`). `key` must have a prefix, because NFD requires one.
pub fn is_valid(key: &str, value: &str) -> bool {
    let Some((prefix, name)) = key.split_once('/') else {
        return false;
    };
    is_subdomain(prefix) && is_name(name) && (value.is_empty() || is_name(value))
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
            switch: None,
            switch_port: None,
            fault: None,
            degraded: None,
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

    #[track_caller]
    fn switches(nics: &[Nic], before: &str) -> Vec<String> {
        let (mut labels, before) = (Labels::default(), Labels::parse(before));
        labels.add_switches(nics, &before.0.iter().collect());
        let lines = labels.0.iter().map(|(name, value)| {
            let (key, value) = (format!("{PREFIX}{name}"), value);
            assert!(is_valid(&key, value), "{key}={value}");
            format!("{name}={value}")
        });
        lines.collect()
    }

    #[test]
    fn the_set_of_switches_has_one_name_on_all_its_nodes() {
        let on = |address: &str, switch: &str| Nic {
            switch: Some(switch.into()),
            ..nic(address)
        };
        let vf = |address: &str, pf: &str| Nic {
            physical_function: Some(pf.into()),
            ..on(address, "leaf2")
        };
        let two = [
            "switch-0=leaf1",
            "switch-1=leaf2",
            "switches=2-switches-0f80c8a0143bbf26",
        ];
        let nics = [on("0", "leaf1"), vf("1.2", "1"), vf("1.3", "1")];
        assert_eq!(switches(&nics, ""), two);
        // on another node, the cables to the switches are swapped
        let crossed = switches(&[on("0", "leaf2"), on("1", "leaf1")], "");
        assert_eq!(crossed[2], two[2]);
        let one = [on("0", "leaf1"), on("1", "leaf1")];
        assert_eq!(switches(&one, "")[2], "switches=leaf1");
        assert_eq!(
            switches(&[on("0", "leaf1"), nic("1")], ""),
            ["switch-0=leaf1"]
        );
        assert_eq!(switches(&[nic("0")], ""), [] as [&str; 0]);
        // the daemon does not receive LLDP from this switch at present
        let before = format!("{PREFIX}switch-1=leaf2\n");
        assert_eq!(switches(&[on("0", "leaf1"), nic("1")], &before), two);
    }

    #[test]
    fn a_name_of_a_foreign_switch_becomes_a_value() {
        let long = "x".repeat(255);
        for (name, expected) in [
            ("leaf1.example.org", "leaf1.example.org"),
            ("leaf1,leaf2", "leaf1_leaf2"),
            ("00:11:22:33:44:55", "00_11_22_33_44_55"),
            (" -a b/ ", "a_b"),
            ("...", "f7d93e17ec4b1219"),
        ] {
            assert_eq!(value(name), expected);
        }
        assert!(value(&long).len() <= LONGEST_VALUE && value(&long).starts_with("xxx"));
        assert_ne!(value(&long), value(&format!("{long}y")));
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
