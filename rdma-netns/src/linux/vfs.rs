// SPDX-License-Identifier: Apache-2.0
//! Virtual functions in rtnetlink: attributes of the physical function's netdev (`IFLA_VFINFO_LIST`,
//! `rtnl_fill_vfinfo()` and `do_setvfinfo()` in `net/core/rtnetlink.c`).

use super::{devices, link_messages, links};
use crate::{
    DeviceAddress, Guid, HardwareAddress, Link, Vf, VfLinkState, VfRates, VfSetting, VfVlan,
    VlanProtocol,
    netlink::{NetlinkError, Socket, attribute, attributes, u32_of},
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{self, LinkAttribute, LinkVfInfo, VfInfo, VlanProtocol as Protocol},
};
use nix::libc::IFLA_VFINFO_LIST;
use std::{io, path::Path};

/// `sizeof(struct ifinfomsg)`
const HEADER: usize = 16;

const IFLA_VF_INFO: u16 = 1;
const IFLA_VF_MAC: u16 = 1;
const IFLA_VF_VLAN: u16 = 2;
const IFLA_VF_SPOOFCHK: u16 = 4;
const IFLA_VF_LINK_STATE: u16 = 5;
const IFLA_VF_RATE: u16 = 6;
const IFLA_VF_TRUST: u16 = 9;
const IFLA_VF_IB_NODE_GUID: u16 = 10;
const IFLA_VF_IB_PORT_GUID: u16 = 11;
const IFLA_VF_VLAN_LIST: u16 = 12;
const IFLA_VF_VLAN_INFO: u16 = 1;

/// `ETH_P_8021AD`
const SERVICE_TAG: u16 = 0x88a8;

/// Value (-1) of an on/off setting that the driver does not report.
const NOT_REPORTED: u32 = u32::MAX;

/// Length of an Ethernet address in bytes. An Ethernet virtual function uses the first six bytes of `struct
/// ifla_vf_mac`.
const ETHERNET: usize = 6;

/// Returns the settings of the virtual function `address` from its physical function. Returns `None` if `address` is no
/// virtual function. `socket` is in the namespace that `sysfs` shows.
///
/// # Errors
/// The physical function's netdev is absent (`NotFound`), or cannot be queried.
pub(super) fn read(
    sysfs: &Path,
    socket: &mut Socket,
    address: &DeviceAddress,
) -> Result<Option<Vf>, NetlinkError> {
    let physical = address.directory(sysfs).join("physfn");
    if address.bus() != "pci" || !physical.exists() {
        return Ok(None);
    }
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let functions = devices::virtual_functions(&physical)?;
    let function = functions.iter().find(|(_, it)| it == address);
    let (number, _) = *function.ok_or_else(missing)?;
    let mut netdevs: Vec<u32> = devices::entries(&physical.join("net"))?
        .iter()
        .filter_map(|netdev| devices::read(netdev, "ifindex")?.parse().ok())
        .collect();
    netdevs.sort_unstable();
    for index in netdevs {
        for body in socket
            .request(&link_messages::with_functions(index), 0)?
            .bodies()
        {
            // in switchdev mode the representors of virtual functions also belong to the physical function
            let own = links::parse(body, sysfs).filter(|it| !it.is_representor());
            let found = own.and_then(|link| of(body, link, number));
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Err(missing().into())
}

/// Returns the virtual function `number` in the `RTM_NEWLINK` of `pf`.
pub(super) fn of(body: &[u8], pf: Link, number: u32) -> Option<Vf> {
    let list = attribute(body.get(HEADER..)?, IFLA_VFINFO_LIST)?;
    let mut functions = attributes(list).filter(|(kind, _)| *kind == IFLA_VF_INFO);
    let settings = functions.find_map(|(_, function)| settings(function, number))?;
    Some(Vf {
        pf: pf.name,
        number,
        settings,
    })
}

/// Returns the settings in an `IFLA_VF_INFO`, if it describes function `number`.
fn settings(function: &[u8], number: u32) -> Option<Vec<VfSetting>> {
    // each attribute begins with the function's number
    let word = |value: &[u8], place: usize| u32_of(value.get(place * 4..place * 4 + 4)?);
    let flag = |value: &[u8]| {
        let value = word(value, 1).filter(|it| *it != NOT_REPORTED)?;
        Some(value != 0)
    };
    let (mut settings, mut is_it, mut vlan) = (vec![], false, None);
    for (kind, value) in attributes(function) {
        is_it |= kind == IFLA_VF_MAC && word(value, 0) == Some(number);
        settings.extend(match kind {
            IFLA_VF_MAC => {
                let mac = value.get(4..4 + ETHERNET)?;
                Some(VfSetting::Mac(HardwareAddress(mac.to_vec())))
            }
            IFLA_VF_VLAN => {
                let tag = vlan_of(word(value, 1)?, word(value, 2)?, VlanProtocol::Customer);
                vlan = vlan.or(Some(tag));
                None
            }
            IFLA_VF_VLAN_LIST => {
                let mut list = attributes(value).filter(|(kind, _)| *kind == IFLA_VF_VLAN_INFO);
                let (_, info) = list.next()?;
                let tag: [u8; 2] = info.get(12..14)?.try_into().ok()?;
                let protocol = match u16::from_be_bytes(tag) {
                    SERVICE_TAG => VlanProtocol::Service,
                    _ => VlanProtocol::Customer,
                };
                vlan = Some(vlan_of(word(info, 1)?, word(info, 2)?, protocol));
                None
            }
            IFLA_VF_RATE => Some(VfSetting::Rates(VfRates {
                min: word(value, 1)?,
                max: word(value, 2)?,
            })),
            IFLA_VF_SPOOFCHK => flag(value).map(VfSetting::SpoofCheck),
            IFLA_VF_TRUST => flag(value).map(VfSetting::Trust),
            IFLA_VF_LINK_STATE => Some(VfSetting::LinkState(match word(value, 1)? {
                1 => VfLinkState::Enable,
                2 => VfLinkState::Disable,
                _ => VfLinkState::Auto,
            })),
            IFLA_VF_IB_NODE_GUID => guid(value).map(VfSetting::NodeGuid),
            IFLA_VF_IB_PORT_GUID => guid(value).map(VfSetting::PortGuid),
            _ => None,
        });
    }
    settings.extend(vlan.map(VfSetting::Vlan));
    is_it.then_some(settings)
}

/// Returns the GUID at the end of a `struct ifla_vf_guid`. The compiler's padding for 64-bit alignment precedes it.
fn guid(value: &[u8]) -> Option<Guid> {
    let guid = value.get(4..)?.last_chunk()?;
    Some(Guid(u64::from_ne_bytes(*guid)))
}

/// Returns a VLAN. An id and a priority of 0 mean that there is none.
fn vlan_of(id: u32, qos: u32, protocol: VlanProtocol) -> VfVlan {
    match (id, qos) {
        (0, 0) => VfVlan::NONE,
        _ => VfVlan {
            id: id as u16,
            qos: qos as u8,
            protocol,
        },
    }
}

/// Builds the request that makes `setting` for the virtual function `number` of the netdev `index`.
pub(super) fn set(index: u32, number: u32, setting: &VfSetting) -> RouteNetlinkMessage {
    let info = match setting {
        VfSetting::Vlan(VfVlan { id, qos, protocol }) => {
            let protocol = match protocol {
                VlanProtocol::Customer => Protocol::Ieee8021Q,
                VlanProtocol::Service => Protocol::Ieee8021Ad,
            };
            let (id, qos) = ((*id).into(), (*qos).into());
            let vlan = link::VfVlanInfo::new(number, id, qos, protocol);
            VfInfo::VlanList(vec![link::VfVlan::Info(vlan)])
        }
        VfSetting::Mac(mac) => VfInfo::Mac(link::VfInfoMac::new(number, &mac.0)),
        VfSetting::Rates(VfRates { min, max }) => {
            VfInfo::Rate(link::VfInfoRate::new(number, *min, *max))
        }
        VfSetting::SpoofCheck(on) => VfInfo::SpoofCheck(link::VfInfoSpoofCheck::new(number, *on)),
        VfSetting::Trust(on) => VfInfo::Trust(link::VfInfoTrust::new(number, *on)),
        VfSetting::LinkState(state) => {
            let state = match state {
                VfLinkState::Auto => link::VfLinkState::Auto,
                VfLinkState::Enable => link::VfLinkState::Enable,
                VfLinkState::Disable => link::VfLinkState::Disable,
            };
            VfInfo::LinkState(link::VfInfoLinkState::new(number, state))
        }
        VfSetting::NodeGuid(Guid(guid)) => VfInfo::IbNodeGuid(link::VfInfoGuid::new(number, *guid)),
        VfSetting::PortGuid(Guid(guid)) => VfInfo::IbPortGuid(link::VfInfoGuid::new(number, *guid)),
    };
    let list = LinkAttribute::VfInfoList(vec![LinkVfInfo(vec![info])]);
    RouteNetlinkMessage::SetLink(link_messages::message(index, vec![list]))
}

#[cfg(test)]
#[path = "vfs_tests.rs"]
mod tests;
