// SPDX-License-Identifier: Apache-2.0
//! Set-up of a virtual function by its physical function on the host. The virtual function cannot change these
//! settings, wherever its netdev is (`IFLA_VFINFO_LIST`, `include/uapi/linux/if_link.h`).

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
    /// Settings, one of each kind; settings that the driver does not report are missing.
    pub settings: Vec<VfSetting>,
}

/// A setting of a virtual function that its physical function makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VfSetting {
    /// VLAN of the function, whose tags the function does not see.
    Vlan(VfVlan),
    /// Hardware address. Zero: the function chooses one.
    Mac(HardwareAddress),
    /// Rates of sending.
    Rates(VfRates),
    /// Spoof check: frames from another hardware address than its own are dropped.
    SpoofCheck(bool),
    /// Trust: the function may change settings that affect others, such as promiscuous mode or its hardware address.
    Trust(bool),
    /// Carrier.
    LinkState(VfLinkState),
    /// GUID of the function's RDMA device, in effect from the next time that the function's driver is bound.
    NodeGuid(Guid),
    /// GUID of the function's port, in effect from the same time as [`Self::NodeGuid`].
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
    /// VLAN id up to 4094; 0: none.
    pub id: u16,
    /// Priority (PCP), up to 7.
    pub qos: u8,
    /// Protocol of the tag.
    pub protocol: VlanProtocol,
}

/// Protocol of a VLAN's tag (`ETH_P_8021Q`, `ETH_P_8021AD`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VlanProtocol {
    /// Customer tag.
    #[default]
    #[serde(rename = "802.1q")]
    Customer,
    /// Service provider's tag, around the customer's.
    #[serde(rename = "802.1ad")]
    Service,
}

/// Limits of the sending rate in Mbit/s; 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfRates {
    /// Guaranteed rate.
    pub min: u32,
    /// Largest rate.
    pub max: u32,
}

/// Carrier of a virtual function (`IFLA_VF_LINK_STATE_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VfLinkState {
    /// Carrier of the physical function.
    Auto,
    /// Carrier always on.
    Enable,
    /// Carrier always off.
    Disable,
}

impl Vf {
    /// Returns the virtual function with only the settings of the kinds in `others`.
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
    /// Returns the initial value of this kind, if a driver can accept the kind and not report it (`rtnl_fill_vfinfo()`,
    /// `net/core/rtnetlink.c`): no trust, which sriov-cni also restores, and the spoof check. `None`: every driver
    /// reports the kind.
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
    /// Returns the GUID, if the setting is one.
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

/// Formats the setting for `ip link set dev PF vf N`.
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
