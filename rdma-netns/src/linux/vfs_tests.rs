// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::VfSettingKind;
use netlink_packet_core::{DefaultNla, NetlinkSerializable};

fn bytes(message: &RouteNetlinkMessage) -> Vec<u8> {
    let mut body = vec![0; message.buffer_len()];
    message.serialize(&mut body);
    body
}

/// Returns the bytes of `struct ifla_vf_*`: the function's number, and then the values.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn mac(number: u32, last: u8) -> VfInfo {
    let mut value = words(&[number]);
    value.extend([0x02, 0, 0, 0, 0, last]);
    value.resize(36, 0);
    VfInfo::Other(DefaultNla::new(IFLA_VF_MAC, value))
}

const GUID: u64 = 0x02c9_0300_216e_7001;

/// Returns the bytes of `struct ifla_vf_guid`. The 64 bits begin at an offset that is a multiple of 8.
fn of_guid(number: u32, guid: u64) -> Vec<u8> {
    let padding = words(&[0]);
    let padding = match cfg!(target_pointer_width = "32") {
        true => &[],
        false => &padding[..],
    };
    [&words(&[number])[..], padding, &guid.to_ne_bytes()].concat()
}

fn of_words(kind: u16, value: &[u32]) -> VfInfo {
    VfInfo::Other(DefaultNla::new(kind, words(value)))
}

/// Returns an `RTM_NEWLINK` of `eth2` with index 4 and these virtual functions.
fn netdev(functions: Vec<LinkVfInfo>) -> Vec<u8> {
    let name = LinkAttribute::IfName("eth2".to_owned());
    let attributes = vec![name, LinkAttribute::VfInfoList(functions)];
    bytes(&RouteNetlinkMessage::NewLink(link_messages::message(
        4, attributes,
    )))
}

fn read(functions: Vec<LinkVfInfo>, number: u32) -> Option<Vf> {
    let body = netdev(functions);
    let link = links::parse(&body, Path::new("/nowhere")).expect("a netdev");
    of(&body, link, number)
}

#[test]
fn every_setting_that_a_driver_reports_of_a_function_is_read() {
    let [tag, zero] = [u16::to_be_bytes(SERVICE_TAG), [0; 2]];
    let mut service = words(&[1, 100, 3]);
    service.extend([tag, zero].concat());
    let list = DefaultNla::new(IFLA_VF_VLAN_INFO, service);
    let functions = vec![
        LinkVfInfo(vec![mac(0, 1), of_words(IFLA_VF_TRUST, &[0, 1])]),
        LinkVfInfo(vec![
            mac(1, 2),
            of_words(IFLA_VF_VLAN, &[1, 100, 3]),
            VfInfo::VlanList(vec![link::VfVlan::Other(list)]),
            of_words(IFLA_VF_RATE, &[1, 10, 200]),
            of_words(IFLA_VF_SPOOFCHK, &[1, 1]),
            of_words(IFLA_VF_LINK_STATE, &[1, 2]),
            // the driver does not report trust
            of_words(IFLA_VF_TRUST, &[1, NOT_REPORTED]),
        ]),
    ];
    let vf = read(functions.clone(), 1).expect("a function");
    assert_eq!((&*vf.pf, vf.number), ("eth2", 1));
    let settings: Vec<String> = vf.settings.iter().map(ToString::to_string).collect();
    assert_eq!(
        settings,
        [
            "mac 02:00:00:00:00:02",
            "min_tx_rate 10 max_tx_rate 200",
            "spoofchk on",
            "state disable",
            "vlan 100 qos 3 proto 802.1ad",
        ]
    );
    assert_eq!(vf.setting(VfSettingKind::Trust), None);
    assert_eq!(read(functions, 2), None);
    assert_eq!(read(vec![], 0), None);
}

/// Linux 5.5 and later report GUIDs of an InfiniBand function in this format. A GUID is zero if the physical function
/// has set no GUID.
#[test]
fn guids_are_reported_if_the_driver_knows_them() {
    let guid = |kind, guid| VfInfo::Other(DefaultNla::new(kind, of_guid(1, guid)));
    let functions = vec![
        LinkVfInfo(vec![mac(0, 1)]),
        LinkVfInfo(vec![
            mac(1, 2),
            guid(IFLA_VF_IB_NODE_GUID, GUID),
            guid(IFLA_VF_IB_PORT_GUID, 0),
        ]),
    ];
    let vf = read(functions.clone(), 1).expect("a function");
    let setting = |kind| vf.setting(kind).map(ToString::to_string);
    assert_eq!(
        setting(VfSettingKind::NodeGuid).as_deref(),
        Some("node_guid 02:c9:03:00:21:6e:70:01")
    );
    assert_eq!(
        setting(VfSettingKind::PortGuid).as_deref(),
        Some("port_guid 00:00:00:00:00:00:00:00")
    );
    let without = read(functions, 0).expect("a function");
    assert_eq!(without.setting(VfSettingKind::PortGuid), None);
}

/// Kernels that do not report `IFLA_VF_VLAN_LIST` use this format.
#[test]
fn a_vlan_without_its_list_is_a_customers_and_none_has_no_tag() {
    let of = |vlan: &[u32]| {
        let function = LinkVfInfo(vec![mac(0, 1), of_words(IFLA_VF_VLAN, vlan)]);
        let vf = read(vec![function], 0).expect("a function");
        vf.setting(VfSettingKind::Vlan).map(ToString::to_string)
    };
    assert_eq!(of(&[0, 7, 0]).as_deref(), Some("vlan 7"));
    assert_eq!(of(&[0, 0, 0]).as_deref(), Some("vlan 0"));
    assert_eq!(vlan_of(0, 0, VlanProtocol::Service), VfVlan::NONE);
}

/// The expected message has the format of `include/uapi/linux/if_link.h`, as `ip link set dev eth2 vf 3 ...` sends it.
#[test]
fn each_setting_is_sent_as_the_kernel_declares_it() {
    let mac: HardwareAddress = "ca:fe:c0:ff:ee:00".parse().expect("an address");
    let mut mac_value = words(&[3]);
    mac_value.extend(&mac.0);
    mac_value.resize(36, 0);
    let vlan = VfVlan {
        id: 1000,
        qos: 4,
        protocol: VlanProtocol::Service,
    };
    let mut vlan_value = words(&[3, 1000, 4]);
    vlan_value.extend([0x88, 0xa8, 0, 0]);
    let nla = |kind: u16, value: &[u8]| {
        let length = u16::try_from(value.len() + 4).expect("short");
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
    };
    for (setting, kind, value) in [
        (VfSetting::Mac(mac), IFLA_VF_MAC, mac_value),
        (
            VfSetting::Vlan(vlan),
            IFLA_VF_VLAN_LIST,
            nla(IFLA_VF_VLAN_INFO, &vlan_value),
        ),
        (
            VfSetting::Rates(VfRates { min: 100, max: 200 }),
            IFLA_VF_RATE,
            words(&[3, 100, 200]),
        ),
        (
            VfSetting::SpoofCheck(false),
            IFLA_VF_SPOOFCHK,
            words(&[3, 0]),
        ),
        (VfSetting::Trust(true), IFLA_VF_TRUST, words(&[3, 1])),
        (
            VfSetting::LinkState(VfLinkState::Enable),
            IFLA_VF_LINK_STATE,
            words(&[3, 1]),
        ),
        (
            VfSetting::NodeGuid(Guid(GUID)),
            IFLA_VF_IB_NODE_GUID,
            of_guid(3, GUID),
        ),
        (
            VfSetting::PortGuid(Guid(GUID)),
            IFLA_VF_IB_PORT_GUID,
            of_guid(3, GUID),
        ),
    ] {
        let body = bytes(&set(4, 3, &setting));
        let nested = |kind: u16| kind | 1 << 15;
        let info = nla(kind, &value);
        let sent = &body[HEADER..];
        let plain = nla(IFLA_VFINFO_LIST, &nla(IFLA_VF_INFO, &info));
        // the sender may omit the flag that marks a nested attribute
        let without_flags: Vec<u8> = [22, 1, 12].iter().fold(sent.to_vec(), |bytes, kind| {
            replace(bytes, nested(*kind), *kind)
        });
        assert_eq!(without_flags, plain, "{setting}");
    }
}

fn replace(mut bytes: Vec<u8>, from: u16, to: u16) -> Vec<u8> {
    let found = bytes
        .chunks_exact(2)
        .position(|it| it == from.to_ne_bytes());
    if let Some(place) = found {
        bytes[place * 2..place * 2 + 2].copy_from_slice(&to.to_ne_bytes());
    }
    bytes
}
