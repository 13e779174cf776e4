//! The record of an attachment: what a pod was given, and how it was before. It is all
//! that is needed to bring everything home, whoever does it and whenever.

use crate::{
    conf::{Dad, Ipv6},
    plan::Wanted,
};
use rdma_netns::{InterfaceName, Link, NetnsId, RdmaDevice, RdmaMode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{fmt, path::PathBuf};

/// The format of the record. A reader refuses a higher one.
pub const FORMAT: u32 = 1;

/// What names an attachment: CNI's own triple.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    /// The network's name.
    pub network: String,
    /// The container id.
    pub container: String,
    /// `CNI_IFNAME`
    pub interface: InterfaceName,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "container {} ({} of network {})",
            self.container, self.interface, self.network
        )
    }
}

/// A pod's rails, and their state on the host before the first change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// [`FORMAT`]
    pub format: u32,
    /// What names it.
    pub key: Key,
    /// `namespace/name` of the Kubernetes pod, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// `CNI_ARGS` of ADD, for the IPAM plugin's DEL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<String>,
    /// The boot that it belongs to: after another one everything is at home.
    pub boot_id: String,
    /// `CNI_NETNS` of ADD.
    pub netns: PathBuf,
    /// The namespace that was there.
    pub netns_id: NetnsId,
    /// How far it got.
    pub phase: Phase,
    /// Mode of the RDMA subsystem at ADD.
    pub rdma_mode: Option<RdmaMode>,
    /// `mtu`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Whether IPv6 addresses get duplicate address detection in the pod.
    pub dad: Dad,
    /// Whether router advertisements are taken in the pod.
    pub accept_ra: bool,
    /// The IPAM plugin's type, where one was asked for addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipam: Option<String>,
    /// The rails, in order.
    pub rails: Vec<Rail>,
    /// The network configuration of ADD, for the IPAM plugin's DEL.
    pub config: Map<String, Value>,
}

/// How far an attachment got on its way into the pod or home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// ADD is under way, or was killed.
    Attaching,
    /// ADD has answered: the pod has its devices.
    Attached,
    /// DEL or GC is under way, or was killed.
    Detaching,
    /// The devices are home, and may be another pod's by now; addresses are still held.
    Home,
}

/// One rail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rail {
    /// Its netdev's name in the pod.
    pub pod_name: InterfaceName,
    /// The netdev as it was on the host. None: an earlier plugin of the chain put it into
    /// the pod and brings it home.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<Link>,
    /// Other netdevs of the same PCI function, which it must not be taken for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Sibling>,
    /// Index in the pod, where the netdev has no hardware address of its own on a bus to
    /// be known by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_index: Option<u32>,
    /// The addresses and routes that ADD gave it, once it has.
    #[serde(default)]
    pub given: Wanted,
    /// The RDMA device as it was on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<RdmaDevice>,
}

/// A netdev that shares its PCI function with a rail's: the other port, a representor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sibling {
    /// Its name on the host.
    pub name: InterfaceName,
    /// Its index on the host.
    pub index: u32,
}

impl Attachment {
    /// Whether its RDMA devices go into the pod.
    pub fn moves_rdma(&self) -> bool {
        self.rdma_mode == Some(RdmaMode::Exclusive)
    }

    /// The `ipv6` of its configuration.
    pub fn ipv6(&self) -> Ipv6 {
        Ipv6 {
            dad: self.dad,
            accept_ra: self.accept_ra,
        }
    }

    /// The holder of its devices, for people.
    pub fn holder(&self) -> String {
        match &self.pod {
            Some(pod) => format!("pod {pod}, {}", self.key),
            None => self.key.to_string(),
        }
    }
}

impl Rail {
    /// The rail's name for people: the netdev's name at home.
    pub fn name(&self) -> &str {
        self.home.as_ref().map_or(&self.pod_name, |home| &home.name)
    }
}
