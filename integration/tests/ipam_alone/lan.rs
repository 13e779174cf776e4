// SPDX-License-Identifier: Apache-2.0
//! A node whose `eth1` has a prefix of each family, and the leases of addresses of these prefixes.

use integration::{Conflist, Invocation, Netns, Node, Outcome, wait};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

/// Addresses of `eth1`.
pub(crate) const HOST: [&str; 2] = ["10.1.0.10/24", "2001:db8:1::10/64"];

/// The routers of `eth1`: one in the prefix, one link-local.
pub(crate) const ROUTERS: [&str; 2] = ["10.1.0.254", "fe80::1"];

#[derive(Debug)]
pub(crate) struct Lan {
    pub(crate) node: Node,
}

impl Lan {
    /// A node whose `eth1` has no addresses.
    #[track_caller]
    pub(crate) fn bare() -> Self {
        Self {
            node: Node::with_rails(1),
        }
    }

    /// A node whose `eth1` has [`HOST`] and [`ROUTERS`].
    #[track_caller]
    pub(crate) fn new() -> Self {
        let lan = Self::bare();
        lan.give(&HOST);
        for router in ROUTERS {
            lan.node
                .host
                .ip(&format!("route add default via {router} dev eth1"));
        }
        lan
    }

    /// Gives `eth1` addresses, and waits until they are usable. Even without duplicate address detection, a kernel
    /// worker (`addrconf_dad_work()`, `net/ipv6/addrconf.c`) makes an address usable. The worker waits for RTNL.
    #[track_caller]
    pub(crate) fn give(&self, addresses: &[&str]) {
        for address in addresses {
            let add = format!("address add {address} dev eth1");
            self.node.host.ip(&add);
        }
        wait::until("its addresses are in use", || {
            let tentative = self.node.host.ip("-6 address show dev eth1 tentative");
            tentative.is_empty()
        });
    }

    /// The configuration `ipam` with `fields`.
    pub(crate) fn ipam(&self, fields: &Value) -> Value {
        let mut ipam = json!({"type": "rdma-ipam", "dataDir": self.data_dir()});
        for (key, value) in fields.as_object().expect("fields") {
            ipam[key] = value.clone();
        }
        ipam
    }

    /// A list with only Debian's `macvlan`, on `eth1`.
    pub(crate) fn macvlan(&self, ipam: &Value) -> Conflist {
        let plugin = json!({
            "type": "macvlan",
            "master": "eth1",
            "mode": "bridge",
            "capabilities": {"ips": true},
            "ipam": self.ipam(ipam),
        });
        Conflist::new("1.0.0", vec![plugin])
    }

    /// A pod that can use its addresses at once.
    #[track_caller]
    pub(crate) fn quick_pod(&self, label: &str) -> Netns {
        let pod = self.node.pod(label);
        pod.set_sysctl("ipv6/conf/default/accept_dad", "0");
        pod
    }

    /// Prepares a direct call of `rdma-ipam`, with the configuration of `list`'s first plugin, in CNI 1.1.
    pub(crate) fn direct(&self, command: &str, list: &Conflist, more: &Value) -> Invocation<'_> {
        let mut input = list.plugins[0].clone();
        input["cniVersion"] = "1.1.0".into();
        input["name"] = list.name.clone().into();
        for (key, value) in more.as_object().expect("fields") {
            input[key] = value.clone();
        }
        let path = self.node.cni_path();
        let own = Path::new(path.split(':').next().expect("rdma-cni's")).join("rdma-ipam");
        Invocation::new(&self.node.host, &own)
            .env("CNI_COMMAND", command)
            .env("CNI_PATH", &path)
            .input(&input)
    }

    /// Calls GC of `rdma-ipam` directly. Only the attachments `valid` (container, interface) still exist.
    #[track_caller]
    pub(crate) fn gc(&self, list: &Conflist, valid: &[(&str, &str)]) {
        let valid = valid
            .iter()
            .map(|(container, ifname)| json!({"containerID": container, "ifname": ifname}));
        let valid: Vec<Value> = valid.collect();
        let more = json!({"cni.dev/valid-attachments": valid});
        self.direct("GC", list, &more).run().silent();
    }

    fn data_dir(&self) -> PathBuf {
        self.node.directory().join("leases")
    }

    /// The directory with the leases of network `net`.
    pub(crate) fn leases_dir(&self) -> PathBuf {
        self.data_dir().join("net")
    }

    /// The owner of each leased address: container, interface.
    pub(crate) fn leases(&self) -> BTreeMap<IpAddr, (String, String)> {
        let Ok(entries) = fs::read_dir(self.leases_dir()) else {
            return BTreeMap::new();
        };
        let names = entries.map(|entry| entry.expect("an entry").file_name());
        let addresses = names.filter_map(|name| name.to_str().expect("UTF-8").parse().ok());
        // a lease that was removed in the meantime is skipped
        let with_owner = |ip| Some((ip, self.lease(ip)?));
        addresses.filter_map(with_owner).collect()
    }

    /// The owner of the lease of `ip`.
    pub(crate) fn lease(&self, ip: IpAddr) -> Option<(String, String)> {
        let text = fs::read_to_string(self.leases_dir().join(ip.to_string())).ok()?;
        let (container, ifname) = text
            .split_once("\r\n")
            .unwrap_or_else(|| panic!("the lease of {ip} is {text:?}"));
        Some((container.to_owned(), ifname.to_owned()))
    }

    /// Asserts that no file of any attachment remains: no lease, no note, no temporary file.
    #[track_caller]
    pub(crate) fn assert_nothing_is_held(&self) {
        assert_eq!(self.leases(), BTreeMap::new());
        let own = self.leases_dir().join("rdma-ipam");
        let mut left = vec![];
        for directory in [own.clone(), own.join("attachments")] {
            let entries = fs::read_dir(directory).into_iter().flatten();
            left.extend(entries.map(|entry| entry.expect("an entry").file_name()));
        }
        left.retain(|name| name != "attachments" && name != "conflicts");
        assert!(left.is_empty(), "{left:?}");
    }
}

pub(crate) fn ips(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().expect("ips");
    let ips = ips.iter().map(|ip| ip["address"].as_str().expect("text"));
    ips.map(str::to_owned).collect()
}

/// The address before the `/`.
pub(crate) fn ip(address: &str) -> IpAddr {
    let (ip, _) = address.split_once('/').expect("an address with its prefix");
    ip.parse().expect("an address")
}

/// Asserts that one of Debian's plugins failed with `code`, usually with an error of `rdma-ipam` that the plugin passes
/// on. Returns the error's message. Debian's errors have no `cniVersion`.
#[track_caller]
pub(crate) fn refused<T>(outcome: Result<T, Outcome>, code: u64) -> String {
    let Err(outcome) = outcome else {
        panic!("succeeded, and not with code {code}");
    };
    let error: Value = serde_json::from_str(&outcome.stdout)
        .unwrap_or_else(|error| panic!("no JSON ({error}): {outcome}"));
    assert_eq!(error["code"], code, "{outcome}");
    error["msg"].as_str().expect("msg").to_owned()
}

/// The network of an address such as `10.1.0.10/24`: its bits and its prefix length.
pub(crate) fn network(address: &str) -> (u128, u32) {
    let (_, length) = address.split_once('/').expect("a prefix length");
    let length: u32 = length.parse().expect("a prefix length");
    let (bits, width) = match ip(address) {
        IpAddr::V4(ip) => (u32::from(ip).into(), 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    (bits >> (width - length), length)
}

#[track_caller]
pub(crate) fn ping(from: &Netns, address: IpAddr) {
    from.run(&format!("ping -n -c 2 -i 0.05 -W 5 {address}"));
}

/// `dst via gateway` of each route in `pod` that has a gateway.
#[track_caller]
pub(crate) fn gateway_routes(pod: &Netns) -> Vec<(String, String)> {
    let mut found = vec![];
    for family in ["-4", "-6"] {
        for route in pod.show(&format!("{family} route show")) {
            let text = |key: &str| route[key].as_str().map(str::to_owned);
            if let Some(gateway) = text("gateway") {
                found.push((text("dst").expect("dst"), gateway));
            }
        }
    }
    found
}
