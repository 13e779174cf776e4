// SPDX-License-Identifier: Apache-2.0
//! Options of `rdma-device-plugin ping`.

use crate::{list::is_name, peer::Place, rails::is_link_local};
use clap::Args;
use kubernetes_api::access;
use network_conf::{STATE_DIR, resource_name::is_subdomain};
use std::{net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

/// Shortest time between two requests for one pair of rails.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

/// Options of `ping`.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// Addresses of rails, pods of this node (NAMESPACE/NAME), or one node. The command pings all rails of a pod. From
    /// each own rail, it pings the node's rail with the same resource and number in the ResourceSlices of both nodes
    #[arg(value_name = "ADDRESS|POD|NODE", required_unless_present = "exchange")]
    pub targets: Vec<Target>,
    /// Exchanges lists of rails on this TCP port with the other pod of a headless Service; both pods run this command.
    /// Pings each rail of the other pod from each own rail. The exit code is 0 if each own rail reaches the other pod's
    /// rail with the same name
    #[arg(long, value_name = "SERVICE:PORT", conflicts_with_all = ["targets", "from", "pod"])]
    pub exchange: Option<Place>,
    /// Seconds to wait for the other pod
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub exchange_timeout: Duration,
    /// Name of this pod in the other pod's table, for instance the node's name; default: the host name
    #[arg(long = "as", value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// Own rail that sends the requests: its netdev, its RDMA device or one of its addresses. Default: for an address
    /// the rail that routes select, for a pod or node all own rails
    #[arg(long, value_name = "NETDEV|DEVICE|ADDRESS")]
    pub from: Option<String>,
    /// Pings from inside this pod of the node
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = pod)]
    pub pod: Option<String>,
    /// Pings each rail of a node from each own rail. Rails with the same resource and number must answer
    #[arg(long)]
    pub all: bool,
    /// Number of requests for each pair of rails
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    /// Seconds between two requests, 0.1 at least
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Seconds to wait in each step of a request: for the neighbour, for the route, for the answer
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub timeout: Duration,
    /// Traffic class of the packets, 0 to 255: with RoCE v2 over IPv4 the TOS byte
    #[arg(long, value_name = "N")]
    pub traffic_class: Option<u8>,
    /// Prints JSON
    #[arg(long)]
    pub json: bool,
    /// Directory of the token and the CA for the API server, which has the rails of nodes
    #[arg(long, value_name = "DIRECTORY", default_value = access::DIRECTORY)]
    pub service_account_dir: PathBuf,
    /// State directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Directory of the node's device files
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev")]
    pub dev: PathBuf,
}

impl Arguments {
    /// Returns the path of the connection manager's device.
    pub(crate) fn manager(&self) -> PathBuf {
        self.dev.join("infiniband/rdma_cm")
    }
}

/// Targets of the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The rail with this address.
    Address(IpAddr),
    /// All rails of the pod `namespace/name`.
    Pod(String),
    /// The rails of the node with this name.
    Node(String),
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(address) => match is_link_local(address) {
                true => Err("is a link-local address: use another address of the rail"),
                false => Ok(Self::Address(address)),
            },
            Err(_) if is_node(text) => Ok(Self::Node(text.to_owned())),
            Err(_) => pod(text).map(Self::Pod).map_err(|_| {
                "must be an IP address, namespace/name of a pod of this node, or the name of a node"
            }),
        }
    }
}

/// Returns true for a DNS subdomain (RFC 1123) with a part that is not a number, unlike an IPv4 address.
fn is_node(text: &str) -> bool {
    let is_number = |it: &str| it.bytes().all(|it| it.is_ascii_digit());
    is_subdomain(text) && !text.split('.').all(is_number)
}

fn pod(text: &str) -> Result<String, &'static str> {
    match text.split('/').collect::<Vec<_>>()[..] {
        // a namespace is a DNS label, and an address is not a DNS label
        [namespace, name]
            if !namespace.is_empty() && !namespace.contains(['.', ':']) && !name.is_empty() =>
        {
            Ok(text.to_owned())
        }
        _ => Err("must be namespace/name of a pod"),
    }
}

fn name(text: &str) -> Result<String, &'static str> {
    match is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("must be the name of a node or pod"),
    }
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok();
    let time = seconds.and_then(|it| Duration::try_from_secs_f64(it).ok());
    // the kernel has 32 bits for the time in milliseconds
    time.filter(|it| (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(it))
        .ok_or("must be a number of seconds from 0.001 to 3600")
}

fn interval(text: &str) -> Result<Duration, &'static str> {
    let time = seconds(text).ok().filter(|it| *it >= SHORTEST_INTERVAL);
    time.ok_or("must be a number of seconds from 0.1 to 3600")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_pods_are_distinguished() {
        let address = |text: &str| text.parse().map(Target::Address).expect("an address");
        assert_eq!("10.0.0.1".parse(), Ok(address("10.0.0.1")));
        assert_eq!("fd00::1".parse(), Ok(address("fd00::1")));
        let pod = Target::Pod("default/web-0".to_owned());
        assert_eq!("default/web-0".parse(), Ok(pod));
        for node in ["web-0", "ip-10-0-0-1.ec2.internal", "fd00"] {
            assert_eq!(node.parse(), Ok(Target::Node(node.to_owned())));
        }
        for text in [
            "",
            "/web",
            "default/",
            "a/b/c",
            "10.0.0.1/24",
            "10.0.0",
            "10.0.0.256",
            "a..b",
            "-a",
            "A",
            "fd00::x",
            "a%3D",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text:?}");
        }
        for text in ["fe80::1", "169.254.1.1"] {
            let error = text.parse::<Target>().expect_err("link-local");
            assert!(error.contains("link-local"), "{text}: {error}");
        }
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(interval("0.1"), Ok(SHORTEST_INTERVAL));
        assert_eq!(seconds("0.001"), Ok(Duration::from_millis(1)));
        for text in ["0", "-1", "NaN", "inf", "1e30", "3601", "x", ""] {
            assert!(seconds(text).is_err(), "{text:?}");
        }
        assert!(interval("0.05").is_err());
    }
}
