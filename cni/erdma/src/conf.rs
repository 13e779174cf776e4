// SPDX-License-Identifier: Apache-2.0
//! What is configured of a NIC's bring-up and of the driver.

use ipnetwork::Ipv4Network;
use rdma_netns::HardwareAddress;
use serde::Deserialize;
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// `jumboFrameMTU` where nobody says: the agent's.
const JUMBO_MTU: u32 = 8500;

/// The metadata service of an ECS instance.
pub const METADATA: &str = "http://100.100.100.200";

/// The driver of an eRDMA NIC's RDMA device (`DRV_MODULE_NAME`, `drivers/infiniband/hw/erdma`).
pub const DRIVER: &str = "erdma";

/// Mode of the eRDMA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DriverMode {
    /// The kernel's own RDMA stack; `rdma_cm` and SMC-R work.
    Default,
    /// Compatible with RoCE (`compat_mode`).
    Compat,
    /// With the RDMA stack of MLNX_OFED.
    Ofed,
}

/// How a NIC is brought up.
#[derive(Clone, Debug, PartialEq)]
pub struct BringUp {
    /// `jumboFrameMTU`: bytes, where the NIC can have so much.
    pub mtu: u32,
    /// Base address of the metadata service, `http://100.100.100.200`.
    pub metadata: String,
    /// Addresses that the metadata service is not asked for.
    pub addresses: Vec<NicAddress>,
}

/// The address of a NIC, by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAddress {
    /// Which NIC.
    pub mac: HardwareAddress,
    /// Its address, and the network that it is in.
    pub address: Ipv4Network,
    /// The network's router.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Default, Self::Compat, Self::Ofed];

    /// The word that configurations have for it.
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
