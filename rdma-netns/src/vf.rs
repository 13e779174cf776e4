// SPDX-License-Identifier: Apache-2.0
//! How a virtual function is set up by its physical function, on the host: what the function itself cannot change,
//! wherever its netdev is (`IFLA_VFINFO_LIST`, `include/uapi/linux/if_link.h`).

use crate::{Guid, HardwareAddress, InterfaceName};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A virtual function, as its physical function has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vf {
    /// The physical function's netdev, on the host.
    pub pf: InterfaceName,
    /// Which of its virtual functions, from 0.
    pub number: u32,
    /// One of a kind; what the driver does not tell is not there.
    pub settings: Vec<VfSetting>,
}

/// Something that a physical function sets of a virtual one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VfSetting {
    /// The VLAN that it is on, of which it sees nothing.
    Vlan(VfVlan),
    /// Its hardware address. Zero: it chooses one.
    Mac(HardwareAddress),
    /// How fast it sends.
    Rates(VfRates),
    /// Whether frames are dropped that it sends from another hardware address than its own.
    SpoofCheck(bool),
    /// Whether it may do what concerns others: promiscuous mode, another hardware address.
    Trust(bool),
    /// Whether it has a carrier.
    LinkState(VfLinkState),
    /// The GUID of its RDMA device, which that has from the next time that the function's driver is bound to it.
    NodeGuid(Guid),
    /// The GUID of its port, from then on as well.
    PortGuid(Guid),
}

/// The kind of a [`VfSetting`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the variants of `VfSetting`")]
pub enum VfSettingKind {
    Vlan,
    Mac,
    Rates,
    SpoofCheck,
    Trust,
    LinkState,
    NodeGuid,
    PortGuid,
}

/// A VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfVlan {
    /// Up to 4094; 0: none.
    pub id: u16,
    /// Priority (PCP), up to 7.
    pub qos: u8,
    /// Whose tag.
    pub protocol: VlanProtocol,
}

/// Whose tag a VLAN has (`ETH_P_8021Q`, `ETH_P_8021AD`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// A customer's.
    #[default]
    #[serde(rename = "802.1q")]
    Customer,
    /// A service provider's, around the customer's.
    #[serde(rename = "802.1ad")]
    Service,
}

/// Mbit/s; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfRates {
    /// What it has at least.
    pub min: u32,
    /// What it has at most.
    pub max: u32,
}

/// Which carrier a virtual function has (`IFLA_VF_LINK_STATE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VfLinkState {
    /// The physical function's.
    Auto,
    /// Always one.
    Enable,
    /// None.
    Disable,
}

impl Vf {
    /// Of its settings those that `others` have a value for.
    pub fn as_in(mut self, others: &[VfSetting]) -> Self {
        let is_named = |it: &VfSetting| others.iter().any(|other| other.kind() == it.kind());
        self.settings.retain(is_named);
        self
    }

    /// The setting of `kind`.
    pub fn setting(&self, kind: VfSettingKind) -> Option<&VfSetting> {
        self.settings.iter().find(|it| it.kind() == kind)
    }
}

impl VfSettingKind {
    /// What functions begin with, of the kinds that a driver can take and not tell (`rtnl_fill_vfinfo()`,
    /// `net/core/rtnetlink.c`): no trust, to which sriov-cni sets them back as well, and a check of what they send.
    /// None: the kernel tells it of every driver.
    pub fn presumed(self) -> Option<VfSetting> {
        match self {
            Self::SpoofCheck => Some(VfSetting::SpoofCheck(true)),
            Self::Trust => Some(VfSetting::Trust(false)),
            _ => None,
        }
    }
}

impl VfVlan {
    /// On no VLAN.
    pub const NONE: Self = Self {
        id: 0,
        qos: 0,
        protocol: VlanProtocol::Customer,
    };
}

impl VfSetting {
    /// The GUID, if it is one.
    pub fn guid(&self) -> Option<Guid> {
        match self {
            Self::NodeGuid(guid) | Self::PortGuid(guid) => Some(*guid),
            _ => None,
        }
    }

    /// Its kind.
    pub fn kind(&self) -> VfSettingKind {
        match self {
            Self::Vlan(_) => VfSettingKind::Vlan,
            Self::Mac(_) => VfSettingKind::Mac,
            Self::Rates(_) => VfSettingKind::Rates,
            Self::SpoofCheck(_) => VfSettingKind::SpoofCheck,
            Self::Trust(_) => VfSettingKind::Trust,
            Self::LinkState(_) => VfSettingKind::LinkState,
            Self::NodeGuid(_) => VfSettingKind::NodeGuid,
            Self::PortGuid(_) => VfSettingKind::PortGuid,
        }
    }
}

/// In the words of `ip link set dev PF vf N`.
impl fmt::Display for VfSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let switch = |on: bool| if on { "on" } else { "off" };
        match self {
            Self::Vlan(VfVlan { id, qos, protocol }) => {
                write!(f, "vlan {id}")?;
                if *qos != 0 {
                    write!(f, " qos {qos}")?;
                }
                match protocol {
                    VlanProtocol::Customer => Ok(()),
                    VlanProtocol::Service => f.write_str(" proto 802.1ad"),
                }
            }
            Self::Mac(mac) => write!(f, "mac {mac}"),
            Self::Rates(VfRates { min, max }) => write!(f, "min_tx_rate {min} max_tx_rate {max}"),
            Self::SpoofCheck(on) => write!(f, "spoofchk {}", switch(*on)),
            Self::Trust(on) => write!(f, "trust {}", switch(*on)),
            Self::LinkState(state) => f.write_str(match state {
                VfLinkState::Auto => "state auto",
                VfLinkState::Enable => "state enable",
                VfLinkState::Disable => "state disable",
            }),
            Self::NodeGuid(guid) => write!(f, "node_guid {guid}"),
            Self::PortGuid(guid) => write!(f, "port_guid {guid}"),
        }
    }
}
