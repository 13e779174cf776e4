// SPDX-License-Identifier: Apache-2.0
//! List of a pod's rails. The two pods of `--exchange` send their lists to each other.

use crate::rails::{Rail, usable};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
};

/// Largest number of rails in a list.
const MOST_RAILS: usize = 64;
/// Largest number of addresses of a rail.
const MOST_ADDRESSES: usize = 16;

/// List that a pod sends. The reader ignores unknown fields.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct List {
    /// Name of the node, or of the pod.
    pub(crate) name: String,
    pub(crate) rails: Vec<Rail>,
}

impl List {
    /// Returns the list of the own `rails`. The list has the name `name`, or otherwise the host's name.
    pub(crate) fn of(name: Option<&str>, rails: &[Rail]) -> Self {
        let host = || fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = name.map_or_else(host, str::to_owned);
        let name = name.trim().to_owned();
        let mut rails = rails.to_vec();
        for rail in &mut rails {
            rail.addresses.truncate(MOST_ADDRESSES);
        }
        Self { name, rails }
    }

    /// Parses a peer's list.
    ///
    /// # Errors
    /// The text is not a list, for the reason given.
    pub(crate) fn parse(line: &[u8]) -> Result<Self, String> {
        let mut list: Self = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let is_netdev =
            |it: &str| (1..=15).contains(&it.len()) && it.bytes().all(|it| it.is_ascii_graphic());
        let is_host = |it: &IpAddr| {
            !(it.is_unspecified() || it.is_loopback() || it.is_multicast())
                && *it != IpAddr::V4(Ipv4Addr::BROADCAST)
        };
        let mut netdevs: Vec<&str> = list.rails.iter().map(|it| &*it.netdev).collect();
        netdevs.sort_unstable();
        netdevs.dedup();
        if !is_name(&list.name) {
            return Err("the name is invalid".to_owned());
        }
        if list.rails.len() > MOST_RAILS {
            return Err(format!("it has more than {MOST_RAILS} rails"));
        }
        if !netdevs.iter().all(|it| is_netdev(it)) {
            return Err("the name of a netdev is invalid".to_owned());
        }
        if netdevs.len() < list.rails.len() {
            return Err("two rails have the same netdev".to_owned());
        }
        for rail in &mut list.rails {
            let addresses = std::mem::take(&mut rail.addresses);
            if addresses.len() > MOST_ADDRESSES || !addresses.iter().all(is_host) {
                return Err(format!("an address of {} is invalid", rail.netdev));
            }
            rail.addresses = usable(addresses);
        }
        Ok(list)
    }
}

/// Returns true for a text that can be the name of a pod, node or Service, or an address.
pub(crate) fn is_name(text: &str) -> bool {
    let is_part = |it: u8| it.is_ascii_alphanumeric() || b".-_:".contains(&it);
    (1..=253).contains(&text.len()) && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_sent() {
        let addresses = ["fd00::1", "10.0.0.1"].map(|it| it.parse().expect("an address"));
        let device = Some("mlx5_0".to_owned());
        let rail = Rail {
            mac: Some("02:00:00:00:00:01".parse().expect("an address")),
            ..Rail::new("rdma0".to_owned(), device, addresses.to_vec())
        };
        let sent = List::of(Some("node-a"), std::slice::from_ref(&rail));
        let line = serde_json::to_vec(&sent).expect("JSON");
        let read = List::parse(&line).expect("a list");
        assert_eq!(read.name, "node-a");
        let device = None;
        assert_eq!(read.rails, [Rail { device, ..rail }]);
    }

    #[test]
    fn a_malformed_list_is_refused() {
        for (text, why) in [
            ("{}", "missing field"),
            (r#"{"name":"b","rails":["#, "EOF"),
            (r#"{"name":"\u001b[2J","rails":[]}"#, "the name is invalid"),
            (
                r#"{"name":"b","rails":[{"netdev":"a b","addresses":[]}]}"#,
                "the name of a netdev is invalid",
            ),
            (
                r#"{"name":"b","rails":[{"netdev":"a","addresses":[]},{"netdev":"a","addresses":[]}]}"#,
                "two rails have the same netdev",
            ),
            (
                r#"{"name":"b","rails":[{"netdev":"a","addresses":[],"mac":"x"}]}"#,
                "is no hardware address",
            ),
            (
                r#"{"name":"b","rails":[{"netdev":"a","addresses":["ff02::1"]}]}"#,
                "an address of a is invalid",
            ),
        ] {
            let error = List::parse(text.as_bytes()).expect_err("no list");
            assert!(error.contains(why), "{text}: {error}");
        }
        let rail = "{\"netdev\":\"eth\",\"addresses\":[]}";
        let many = (0..=MOST_RAILS).map(|it| rail.replace("eth", &format!("eth{it}")));
        let many = many.collect::<Vec<_>>().join(",");
        let many = format!("{{\"name\":\"b\",\"rails\":[{many}]}}");
        let error = List::parse(many.as_bytes()).expect_err("too many");
        assert_eq!(error, "it has more than 64 rails");
    }
}
