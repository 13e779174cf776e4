// SPDX-License-Identifier: Apache-2.0
//! Settings that the host makes for a virtual function through its physical function. The virtual function cannot
//! change these settings, whichever namespace its netdev is in (`IFLA_VFINFO_LIST`, `include/uapi/linux/if_link.h`).

use crate::{Guid, HardwareAddress, InterfaceName};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A virtual function, as its physical function reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vf {
    /// The physical function's netdev, on the host.
    pub pf: InterfaceName,
    /// Index of the virtual function, from 0.
    pub number: u32,
    /// Settings, one of each kind. Settings that the driver does not report are missing.
    pub settings: Vec<VfSetting>,
}

/// A setting that a physical function makes for a virtual function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VfSetting {
    /// VLAN of the function. The function does not see the VLAN's tags.
    Vlan(VfVlan),
    /// Hardware address. Zero: the virtual function chooses an address.
    Mac(HardwareAddress),
    /// Limits of the sending rate.
    Rates(VfRates),
    /// Spoof check: the NIC drops frames whose source address is not the function's hardware address.
    SpoofCheck(bool),
    /// Trust: the function may change settings that affect other functions, such as promiscuous mode or its hardware
    /// address.
    Trust(bool),
    /// Carrier of the function.
    LinkState(VfLinkState),
    /// GUID of the function's RDMA device. The GUID takes effect when the function's driver is bound the next time.
    NodeGuid(Guid),
    /// GUID of the function's port. The GUID takes effect when the function's driver is bound the next time.
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
    /// VLAN id up to 4094. 0: the function has no VLAN.
    pub id: u16,
    /// Priority (PCP), up to 7.
    pub qos: u8,
    /// Protocol of the tag.
    pub protocol: VlanProtocol,
}

/// Protocol of a VLAN's tag (`ETH_P_8021Q`, `ETH_P_8021AD`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// Tag of a customer's VLAN (802.1Q).
    #[default]
    #[serde(rename = "802.1q")]
    Customer,
    /// Tag of a service provider's VLAN (802.1ad), around the customer's tag.
    #[serde(rename = "802.1ad")]
    Service,
}

/// Limits of the sending rate in Mbit/s. 0: there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfRates {
    /// Guaranteed sending rate.
    pub min: u32,
    /// Largest sending rate.
    pub max: u32,
}

/// Carrier of a virtual function (`IFLA_VF_LINK_STATE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VfLinkState {
    /// The function has the carrier of the physical function.
    Auto,
    /// The carrier is always on.
    Enable,
    /// The carrier is always off.
    Disable,
}

impl Vf {
    /// Returns the virtual function with only the settings whose kinds occur in `others`.
    pub fn as_in(mut self, others: &[VfSetting]) -> Self {
        let is_named = |it: &VfSetting| others.iter().any(|other| other.kind() == it.kind());
        self.settings.retain(is_named);
        self
    }

    /// Returns the setting of `kind`.
    pub fn setting(&self, kind: VfSettingKind) -> Option<&VfSetting> {
        self.settings.iter().find(|it| it.kind() == kind)
    }
}

impl VfSettingKind {
    /// Returns the initial value of a setting that some drivers accept without reporting it (`rtnl_fill_vfinfo()`,
    /// `net/core/rtnetlink.c`): trust off, which sriov-cni also restores, and spoof check on. Returns `None` for all
    /// other kinds.
    pub fn presumed(self) -> Option<VfSetting> {
        match self {
            Self::SpoofCheck => Some(VfSetting::SpoofCheck(true)),
            Self::Trust => Some(VfSetting::Trust(false)),
            _ => None,
        }
    }
}

impl VfVlan {
    /// Value for a function without a VLAN.
    pub const NONE: Self = Self {
        id: 0,
        qos: 0,
        protocol: VlanProtocol::Customer,
    };
}

impl VfSetting {
    /// Returns the GUID, if the setting is a GUID.
    pub fn guid(&self) -> Option<Guid> {
        match self {
            Self::NodeGuid(guid) | Self::PortGuid(guid) => Some(*guid),
            _ => None,
        }
    }

    /// Returns the kind of the setting.
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

/// Formats the setting as arguments of `ip link set dev PF vf N`.
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
