// SPDX-License-Identifier: Apache-2.0
//! Configuration of the bring-up and of the driver.

use conf_reader::{optional, parsed};
use ipnetwork::Ipv4Network;
use rdma_netns::HardwareAddress;
use serde::{Deserialize, Deserializer};
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// Default of `jumboFrameMTU` in bytes, which Alibaba Cloud's agent also uses.
const JUMBO_MTU: u32 = 8500;

/// Base URL of an ECS instance's metadata service.
pub const METADATA: &str = "http://100.100.100.200";

/// Name of the driver (`DRV_MODULE_NAME`, `drivers/infiniband/hw/erdma`).
pub const DRIVER: &str = "erdma";

/// Mode of the eRDMA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DriverMode {
    /// Mode with `rdma_cm` and SMC-R, for any RDMA stack.
    Default,
    /// Mode in which the device behaves like a RoCE device (`compat_mode`).
    Compat,
    /// `compat_mode` with the RDMA stack of MLNX_OFED.
    Ofed,
}

/// Configuration of the bring-up.
#[derive(Clone, Debug, PartialEq)]
pub struct BringUp {
    /// Value of `jumboFrameMTU` in bytes, for NICs that support it.
    pub mtu: u32,
    /// Base URL of the metadata service, such as `http://100.100.100.200`.
    pub metadata: String,
    /// Addresses of NICs in the configuration. The daemon does not query the metadata service for these NICs.
    pub addresses: Vec<NicAddress>,
}

/// Address of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicAddress {
    /// MAC address of the NIC.
    #[serde(deserialize_with = "mac")]
    pub mac: HardwareAddress,
    /// Address, with the prefix length of its network.
    #[serde(deserialize_with = "network")]
    pub address: Ipv4Network,
    /// Router of the network; `None`: no router is known.
    #[serde(deserialize_with = "gateway")]
    pub gateway: Option<Ipv4Addr>,
}

fn mac<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HardwareAddress, D::Error> {
    let expected = "a NIC's hardware address, as 00:16:3e:01:02:03";
    parsed(deserializer, expected, |text| {
        let mac: HardwareAddress = text.parse().ok()?;
        (mac.0.len() == 6).then_some(mac)
    })
}

/// Parses an address with its prefix length. The prefix length is required: without it, the NIC would reach no other
/// host of its network.
fn network<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ipv4Network, D::Error> {
    let expected = "an IPv4 address with a prefix length, as 192.168.3.4/24";
    parsed(deserializer, expected, |text| {
        let (address, prefix) = text.split_once('/')?;
        Ipv4Network::new(address.parse().ok()?, prefix.parse().ok()?).ok()
    })
}

fn gateway<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ipv4Addr>, D::Error> {
    optional(deserializer, "an IPv4 address", |text| text.parse().ok())
}

impl Default for BringUp {
    fn default() -> Self {
        Self {
            mtu: JUMBO_MTU,
            metadata: METADATA.to_owned(),
            addresses: Vec::new(),
        }
    }
}

impl DriverMode {
    /// All modes of the driver.
    pub const ALL: [Self; 3] = [Self::Default, Self::Compat, Self::Ofed];

    /// Returns the mode's name in configurations.
    pub fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Compat => "compat",
            Self::Ofed => "ofed",
        }
    }
}

impl fmt::Display for DriverMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for DriverMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|mode| mode.word() == text);
        found.ok_or_else(|| format!("must be one of default, compat, ofed, and is {text:?}"))
    }
}
