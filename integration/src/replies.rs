// SPDX-License-Identifier: Apache-2.0
//! Checks by which interface each reply of a pod leaves. The machine has rails, and the pod has a cluster's primary
//! network. Every interface of the pod has strict `rp_filter`. The packets are counted at the other ends of the
//! interfaces.

use crate::{Netns, Node, Outcome, Snapshot, ipam};
use serde_json::{Value, json};

/// Kind of a pod's primary network.
#[derive(Clone, Copy, Debug)]
pub enum Primary {
    /// As with Calico: the addresses have the full prefix length, and no network of the pod contains the routers on the
    /// link.
    Routed,
    /// As with a bridge: the addresses have networks, and these networks contain the routers.
    Bridged,
}

impl Primary {
    /// Both kinds.
    pub const BOTH: [Self; 2] = [Self::Routed, Self::Bridged];

    /// Returns the addresses of `eth0`.
    pub fn addresses(self) -> [&'static str; 2] {
        match self {
            Self::Routed => ["172.16.1.5", "fd00:172::5"],
            Self::Bridged => ["10.244.0.9", "fd00:244::9"],
        }
    }
}

/// Addresses of the node itself in the networks of `rdma0`.
pub const OF_NODE: [&str; 2] = ["10.20.0.1", "fd00:20::1"];

/// Addresses behind the routers of all rails.
const FAR: [&str; 2] = ["198.51.100.1", "2001:db8:99::1"];

/// A machine with rails, and a pod with its primary network.
pub struct Machine {
    /// The machine with its rails, and the rails' switch.
    pub node: Node,
    /// The pod's namespace.
    pub pod: Netns,
    /// Namespace with the other end of `eth0`.
    pub uplink: Netns,
    /// Kind of the pod's primary network.
    pub primary: Primary,
    rails: u32,
}

impl Machine {
    /// Makes a machine with `rails` rails.
    #[track_caller]
    pub fn new(primary: Primary, rails: u32) -> Self {
        let node = Node::with_rails(rails);
        let pod = node.pod("pod");
        for which in ["all", "default"] {
            pod.set_sysctl(&format!("ipv4/conf/{which}/rp_filter"), "1");
        }
        pod.set_sysctl("ipv6/conf/default/dad_transmits", "0");
        let uplink = Netns::new("uplink");
        uplink.set_sysctl("ipv6/conf/default/dad_transmits", "0");
        let name = uplink.name();
        pod.ip(&format!(
            "link add name eth0 type veth peer name uplink netns {name}"
        ));
        uplink.ip_batch(&[
            "link set dev lo up".to_owned(),
            "link set dev uplink up".to_owned(),
            "address add 10.20.0.1/32 dev lo".to_owned(),
            "address add fd00:20::1/128 dev lo nodad".to_owned(),
        ]);
        pod.ip("link set dev eth0 up");
        let (of_pod, of_uplink): (&[&str], &[&str]) = match primary {
            Primary::Routed => (
                &[
                    "address add 172.16.1.5/32 dev eth0",
                    "address add fd00:172::5/128 dev eth0 nodad",
                    "route add 169.254.1.1 dev eth0 scope link",
                    "route add default via 169.254.1.1 dev eth0",
                    "route add default via fe80::ee dev eth0",
                ],
                &[
                    "address add 169.254.1.1/32 dev uplink",
                    "address add fe80::ee/64 dev uplink nodad",
                    "route add 172.16.1.5/32 dev uplink",
                    "route add fd00:172::5/128 dev uplink",
                ],
            ),
            Primary::Bridged => (
                &[
                    "address add 10.244.0.9/24 dev eth0",
                    "address add fd00:244::9/64 dev eth0 nodad",
                    "route add default via 10.244.0.1 dev eth0",
                    "route add default via fd00:244::1 dev eth0",
                ],
                &[
                    "address add 10.244.0.1/24 dev uplink",
                    "address add fd00:244::1/64 dev uplink nodad",
                ],
            ),
        };
        let lines = |it: &[&str]| it.iter().map(ToString::to_string).collect::<Vec<_>>();
        uplink.ip_batch(&lines(of_uplink));
        pod.ip_batch(&lines(of_pod));
        // the switch is also the rails' router
        let mut of_switch = lines(&[
            "link set dev lo up",
            "address add 198.51.100.1/32 dev lo",
            "address add 2001:db8:99::1/128 dev lo nodad",
        ]);
        for rail in 0..rails {
            let [v4, v6] = [format!("10.2{rail}.0"), format!("fd00:2{rail}:")];
            of_switch.push(format!("address add {v4}.254/24 dev br0"));
            of_switch.push(format!("address add {v6}:fe/64 dev br0 nodad"));
            let answer = json!({"ips": [
                {"address": format!("{v4}.7/24"), "gateway": format!("{v4}.254")},
                {"address": format!("{v6}:7/64"), "gateway": format!("{v6}:fe")},
            ]});
            node.ipam.answer(&format!("ADD.rdma{rail}"), &answer);
        }
        node.switch.ip_batch(&of_switch);
        Self {
            node,
            pod,
            uplink,
            primary,
            rails,
        }
    }

    /// Returns a configuration of all rails. By `mode`, they move into the pod, or the pod gets a child of each.
    pub fn configuration(&self, mode: &str) -> Value {
        let names: Vec<String> = (1..=self.rails).map(|rail| format!("eth{rail}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut configuration = self.node.configuration(&names);
        configuration["mode"] = mode.into();
        configuration["ipam"] = json!({"type": ipam::NAME});
        configuration
    }

    /// Runs CHECK after the ADD with the result `result`.
    pub fn check(&self, configuration: &Value, result: &Value) -> Outcome {
        let mut configuration = configuration.clone();
        configuration["prevResult"] = result.clone();
        let check = self.node.invoke("CHECK", "a", self.pod.path());
        check.input(&configuration).run()
    }

    /// Returns the numbers of packets from the pod: first at the other end of `eth0`, then at the switch's port of each
    /// rail.
    pub fn received(&self) -> Vec<u64> {
        let ports = (1..=self.rails).map(|rail| format!("to-eth{rail}"));
        let rails = ports.map(|port| self.node.switch.rx_packets(&port));
        let eth0 = self.uplink.rx_packets("uplink");
        std::iter::once(eth0).chain(rails).collect()
    }

    /// Sends echo requests from `peer` in `from` to `address` of the pod. Asserts by packet counters that all replies
    /// leave by the interface with the number `way`: 0 is `eth0`, then the rails follow.
    #[track_caller]
    fn replies(&self, from: &Netns, peer: &str, address: &str, way: usize) {
        let before = self.received();
        from.run(&format!(
            "ping -n -q -c 40 -i 0.01 -W 2 -I {peer} {address}"
        ));
        let after = self.received();
        for (interface, (before, after)) in before.into_iter().zip(after).enumerate() {
            let count = after - before;
            let is_right = if interface == way {
                count >= 40
            } else {
                count < 20
            };
            assert!(
                is_right,
                "{:?}: of {address} asked by {peer}, interface {interface} has sent {count}",
                self.primary
            );
        }
    }

    /// Checks that replies of the primary addresses to the node leave by `eth0`, and that replies of each rail's
    /// addresses to peers behind the routers leave by this rail.
    #[track_caller]
    pub fn all_replies(&self) {
        for (peer, address) in OF_NODE.iter().zip(self.primary.addresses()) {
            self.replies(&self.uplink, peer, address, 0);
        }
        for rail in 0..self.rails as usize {
            let own = [format!("10.2{rail}.0.7"), format!("fd00:2{rail}::7")];
            for (peer, address) in FAR.iter().zip(&own) {
                self.replies(&self.node.switch, peer, address, rail + 1);
            }
        }
    }

    /// Returns our rules, and the routes of their tables.
    pub fn policy(&self) -> Vec<String> {
        let is_ours = |it: &Value| {
            let table = it["table"].as_str().and_then(|it| it.parse().ok());
            table.is_some_and(|it| (1000..1010).contains(&it))
        };
        let mut policy = vec![];
        for family in [4, 6] {
            let shown = self
                .pod
                .show_each(family, ["rule show", "route show table all"]);
            let ours = shown.iter().flatten().filter(|it| is_ours(it));
            policy.extend(ours.map(ToString::to_string));
        }
        policy
    }
}

/// Returns the netdev of the route to `address`.
#[track_caller]
pub fn way_to(pod: &Netns, address: &str) -> Value {
    pod.show(&format!("route get {address}"))[0]["dev"].clone()
}

/// Asserts that no rail attracts replies of another interface. Runs ADD, CHECK and DEL for each of `ways`: a mode and a
/// type of child.
#[track_caller]
pub fn with_rails(rails: u32, ways: &[(&str, &str)]) {
    for primary in Primary::BOTH {
        for (mode, child) in ways {
            let machine = Machine::new(primary, rails);
            let (node, pod) = (&machine.node, &machine.pod);
            let [host_before, before] = [&node.host, pod].map(Snapshot::of);
            let mut configuration = machine.configuration(mode);
            configuration["child"] = json!({ "type": child });
            let result = node.add(&configuration, "a", pod);
            for (peer, address) in OF_NODE.iter().zip(primary.addresses()) {
                assert_eq!(way_to(pod, &format!("{peer} from {address}")), "eth0");
                // programs that bind to no address, or that read only the main table, use the rail
                assert_eq!(way_to(pod, peer), "rdma0");
                let main = pod.show(&format!("route show table main root {peer}/16"));
                assert!(peer.contains(':') || main.iter().any(|it| it["dev"] == "rdma0"));
            }
            machine.all_replies();
            machine.check(&configuration, &result).silent();
            node.del(&configuration, "a", pod);
            assert_eq!(machine.policy(), [""; 0], "{primary:?}, {mode}, {child}");
            before.assert_restored(pod);
            host_before.assert_restored(&node.host);
        }
    }
}
