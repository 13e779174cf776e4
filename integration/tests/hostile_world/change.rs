// SPDX-License-Identifier: Apache-2.0
//! Changes that a pod makes to one of its rails. The test chooses them at random, and the real kernel performs them.

use crate::{
    inside::{set_channels, set_features, write_attribute},
    programs::{Place, attach},
};
use std::{fs, os::fd::OwnedFd};

/// Pseudorandom numbers from a seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number from 0 to `sides` - 1.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = self.0;
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % sides as u64).expect("small")
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.roll(list.len())]
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Ip(String),
    Tc(String),
    /// An attribute of the netdev in sysfs.
    Attribute(&'static str, &'static str),
    /// A setting of the netdev below `/proc/sys/net`.
    Sysctl(&'static str, &'static str),
    /// Features of the driver, switched on or off.
    Features(u32, bool),
    /// Number of channels of the driver.
    Channels(u32),
    /// A BPF program at a place. A BPF link keeps it attached if the second field is true.
    Program(Place, bool),
}

const IP: [&str; 42] = [
    "link set dev {rail} mtu 1300",
    "link set dev {rail} mtu 1200",
    "link set dev {rail} address 02:00:00:00:66:{n}",
    "link set dev {rail} broadcast 02:00:00:00:00:99",
    "link set dev {rail} txqueuelen 7",
    "link set dev {rail} alias stolen",
    "link set dev {rail} name x{n}",
    "link set dev {rail} name eth{other}",
    "link set dev {rail} down",
    "link set dev {rail} up",
    "link set dev {rail} promisc on",
    "link set dev {rail} allmulticast on",
    "link set dev {rail} multicast off",
    "link set dev {rail} arp off",
    "link set dev {rail} dynamic on",
    "link set dev {rail} trailers off",
    "link set dev {rail} mode dormant",
    "link set dev {rail} state dormant",
    "link set dev {rail} group 7",
    "link set dev {rail} gso_max_size 30000",
    "link set dev {rail} gso_max_segs 10",
    "link set dev {rail} protodown on",
    "link set dev {rail} addrgenmode none",
    "link property add dev {rail} altname a-second-name-{n}",
    "link property add dev {rail} altname eth{other}",
    "address add 10.{n}.0.1/16 dev {rail}",
    "address add 2001:db8:{n}::1/64 dev {rail} nodad",
    "address flush dev {rail}",
    "route add 198.18.{n}.0/24 dev {rail}",
    "neigh replace 10.{n}.0.9 lladdr 02:00:00:00:00:09 dev {rail} nud permanent",
    "neigh add proxy 10.{n}.0.7 dev {rail}",
    "maddress add 33:33:00:00:12:34 dev {rail}",
    "token set ::{n} dev {rail}",
    "link add link {rail} name m{n} up type macvlan mode bridge",
    "link add link {rail} name p{n} up type macvlan mode passthru",
    "link add link {rail} name t{n} up type macvtap mode vepa",
    "link add name v{n} up type vxlan id {n} dev {rail} dstport 4789 group 239.1.1.1",
    "link set dev {rail} master br0",
    "link set dev m{n} master br0",
    "link set dev {rail} netns {host}",
    "link set dev {rail} netns {host} name y{n}",
    "rule add from 10.{n}.0.0/16 lookup 77",
];

const TC: [&str; 5] = [
    "qdisc add dev {rail} clsact",
    "qdisc replace dev {rail} root pfifo limit 5",
    "qdisc replace dev {rail} root tbf rate 1mbit burst 10k latency 50ms",
    "filter add dev {rail} ingress matchall action mirred egress redirect dev own0",
    "filter add dev {rail} egress matchall action mirred egress mirror dev own0",
];

const ATTRIBUTES: [(&str, &str); 11] = [
    ("gro_flush_timeout", "20000"),
    ("napi_defer_hard_irqs", "7"),
    ("threaded", "1"),
    ("proto_down", "1"),
    ("netdev_group", "9"),
    ("queues/rx-0/rps_cpus", "1"),
    ("queues/rx-0/rps_flow_cnt", "32"),
    ("queues/tx-0/xps_cpus", "1"),
    ("queues/tx-0/xps_rxqs", "1"),
    ("queues/tx-1/xps_cpus", "2"),
    ("queues/rx-3/rps_cpus", "3"),
];

const SYSCTLS: [(&str, &str); 8] = [
    ("ipv4/conf/{rail}/proxy_arp", "1"),
    ("ipv4/conf/{rail}/forwarding", "1"),
    ("ipv4/conf/{rail}/bc_forwarding", "1"),
    ("ipv4/neigh/{rail}/gc_stale_time", "11"),
    ("ipv6/conf/{rail}/disable_ipv6", "1"),
    ("ipv6/conf/{rail}/hop_limit", "3"),
    ("ipv6/conf/{rail}/accept_ra", "2"),
    ("ipv6/neigh/{rail}/mcast_solicit", "9"),
];

/// Scatter-gather, checksums and GRO, alone and together.
const FEATURES: [u32; 4] = [0x1, 0x8, 0x4000, 0x4009];

impl Change {
    pub(crate) fn any(dice: &mut Dice) -> Self {
        match dice.roll(10) {
            0..=4 => Self::Ip(dice.of(&IP).to_owned()),
            5 => Self::Tc(dice.of(&TC).to_owned()),
            6 => {
                let (attribute, value) = dice.of(&ATTRIBUTES);
                Self::Attribute(attribute, value)
            }
            7 => {
                let (key, value) = dice.of(&SYSCTLS);
                Self::Sysctl(key, value)
            }
            8 if dice.roll(3) == 0 => Self::Channels(1 + dice.roll(4) as u32),
            8 => Self::Features(dice.of(&FEATURES), dice.roll(2) == 0),
            _ => {
                let place = dice.of(&[Place::Xdp, Place::Ingress, Place::Egress]);
                Self::Program(place, dice.roll(2) == 0)
            }
        }
    }

    /// Fills in a command for the rail `rail` with the number `n`. `other` is the number of another rail.
    pub(crate) fn fill(text: &str, rail: &str, n: usize, other: usize, host: &str) -> String {
        text.replace("{rail}", rail)
            .replace("{n}", &format!("{n:02}"))
            .replace("{other}", &other.to_string())
            .replace("{host}", host)
    }

    /// Makes a change that needs no external program, in the calling thread, whose namespace is the pod's. Ignores the
    /// kernel's refusal. The caller must keep the returned descriptor open.
    pub(crate) fn make(&self, rail: &str) -> Option<OwnedFd> {
        match self {
            Self::Ip(_) | Self::Tc(_) => {}
            Self::Attribute(attribute, value) => drop(write_attribute(rail, attribute, value)),
            Self::Sysctl(key, value) => {
                let path = format!("/proc/sys/net/{}", key.replace("{rail}", rail));
                drop(fs::write(path, value));
            }
            Self::Features(bits, on) => drop(set_features(rail, *bits, *on)),
            Self::Channels(count) => drop(set_channels(rail, *count)),
            Self::Program(place, link) => {
                let index = fs::read_to_string(format!("/sys/class/net/{rail}/ifindex"));
                let index = index.ok()?.trim().parse().ok()?;
                return attach(*place, index, *link).ok();
            }
        }
        None
    }
}
