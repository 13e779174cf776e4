// SPDX-License-Identifier: Apache-2.0
//! Configuration of the bring-up and of the driver.

use ipnetwork::Ipv4Network;
use rdma_netns::HardwareAddress;
use serde::Deserialize;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAddress {
    /// MAC address of the NIC.
    pub mac: HardwareAddress,
    /// Address, with the prefix length of its network.
    pub address: Ipv4Network,
    /// Router of the network; `None`: no router is known.
    pub gateway: Option<Ipv4Addr>,
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
