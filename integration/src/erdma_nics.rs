// SPDX-License-Identifier: Apache-2.0
//! The lab's NICs that act as unconfigured eRDMA NICs of an Alibaba Cloud instance, as seen from inside the VM
//! (`integration/lab/vm --tier erdma`): down and without addresses. A metadata service on loopback has their addresses.

use crate::{
    MetadataService, Netns,
    erdma_functions::{ErdmaFunctions, NICS},
    wait,
};
use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// Subnet of both NICs.
pub const CIDR: &str = "10.0.0.0/24";
/// Address of the subnet's router.
pub const GATEWAY: &str = "10.0.0.253";
/// Addresses in the service's answers.
pub const ADDRESSES: [&str; 2] = ["10.0.0.6", "10.0.0.7"];

/// The NICs, and the metadata service that describes them.
#[derive(Debug)]
pub struct ErdmaNics {
    /// The VM's own namespace.
    pub host: Netns,
    /// The metadata service.
    pub service: MetadataService,
}

/// Returns the hardware address of `nic`.
#[track_caller]
pub fn mac(nic: &str) -> String {
    let file = Path::new("/sys/class/net").join(nic).join("address");
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{nic}: {error}"));
    text.trim().to_owned()
}

impl ErdmaNics {
    /// Returns the NICs of `functions` in the state after an instance's boot, with `service` as the metadata service.
    #[track_caller]
    pub fn of(functions: &ErdmaFunctions, service: MetadataService) -> Self {
        functions.are_home();
        let host = Netns::own();
        for (rail, nic) in NICS.into_iter().enumerate() {
            host.ip(&format!("link set dev {nic} down"));
            host.set_sysctl(&format!("ipv4/conf/{nic}/rp_filter"), "1");
            // `ipv6/conf/default` does not apply to the NIC, which already exists
            for key in ["dad_transmits", "router_solicitation_delay"] {
                host.set_sysctl(&format!("ipv6/conf/{nic}/{key}"), "0");
            }
            service.add_nic(&mac(nic), ADDRESSES[rail], CIDR, GATEWAY);
        }
        Self { host, service }
    }

    /// Returns destination, source and metric of a NIC's IPv4 routes.
    pub fn routes(&self, nic: &str) -> Vec<(String, String, u64)> {
        let routes = self.host.show(&format!("-4 route show dev {nic}"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let fields = |it: &Value| {
            let metric = it["metric"].as_u64().unwrap_or_default();
            (text(&it["dst"]), text(&it["prefsrc"]), metric)
        };
        routes.iter().map(fields).collect()
    }

    /// Returns the routes that the daemon sets for the NIC on `rail`, with the NIC's metric.
    pub fn wanted(rail: usize, metric: u64) -> Vec<(String, String, u64)> {
        let of = |destination: &str| {
            let source = ADDRESSES[rail].to_owned();
            (destination.to_owned(), source, metric)
        };
        vec![of("default"), of(CIDR)]
    }

    /// Waits until both NICs have the configuration of the metadata service.
    #[track_caller]
    pub fn are_configured(&self) {
        for (rail, nic) in NICS.into_iter().enumerate() {
            let metric = 200 + rail as u64;
            wait::until("the NIC has its routes", || {
                self.routes(nic) == Self::wanted(rail, metric)
            });
            let ip = format!("{}/24", ADDRESSES[rail]);
            let addresses = self.host.addresses(nic);
            assert!(addresses.contains(&ip), "{nic}: {addresses:?}");
            assert_eq!(self.host.link(nic).expect("a NIC")["mtu"], 8500);
        }
    }

    /// Returns the value of `rp_filter` on `nic`.
    pub fn filter(&self, nic: &str) -> String {
        self.host.sysctl(&format!("ipv4/conf/{nic}/rp_filter"))
    }
}

impl Drop for ErdmaNics {
    fn drop(&mut self) {
        for nic in NICS {
            for line in [
                format!("address flush dev {nic} scope global"),
                format!("link set dev {nic} nomaster mtu 1500 down"),
            ] {
                let mut ip = Command::new("ip");
                let _ = ip.args(line.split_whitespace()).output();
            }
        }
    }
}
