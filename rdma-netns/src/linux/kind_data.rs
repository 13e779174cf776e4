// SPDX-License-Identifier: Apache-2.0
//! Settings of a virtual netdev's kind (`IFLA_INFO_DATA`, `include/uapi/linux/if_link.h`) that survive a move, and that
//! an administrator of the netdev's namespace can change. The module also reads and writes the reasons why the netdev's
//! protocol is down (`IFLA_PROTO_DOWN_REASON`).

use super::link_messages::{self, HEADER};
use crate::{
    DeviceSettings, Link,
    netlink::{NetlinkError, Socket, attribute, attributes},
};
use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use netlink_packet_route::{RouteNetlinkMessage, link::LinkAttribute};
use nix::libc::{IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_LINKINFO, IFLA_PROTO_DOWN_REASON};
use std::io;

const IFLA_PROTO_DOWN_REASON_VALUE: u16 = 2;

const IFLA_MACVLAN_MACADDR_MODE: u16 = 3;
const IFLA_MACVLAN_MACADDR: u16 = 4;
const IFLA_MACVLAN_MACADDR_DATA: u16 = 5;
/// `MACVLAN_MACADDR_SET`
const MACADDR_SET: u32 = 3;

const IFLA_VLAN_FLAGS: u16 = 2;
const IFLA_VLAN_QOS_MAPPING: u16 = 1;
/// All of `VLAN_FLAG_*` (Linux 5.3).
const VLAN_FLAGS: u32 = 0x1f;

/// Format of an attribute that a program can set.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// Bytes without structure.
    Plain,
    /// `struct ifla_vlan_flags`
    Flags,
    /// A list of sender addresses.
    Senders,
    /// A list of `struct ifla_vlan_qos_mapping`, each with a value `from` and a value `to`.
    Mappings,
}

/// Attributes of macvlan, in an order in which they can be set: mode, flags, length of the broadcast queue, sender
/// addresses (`macvlan_changelink()`, `drivers/net/macvlan.c`). The list omits the broadcast cutoff, because it applies
/// to all children of the lower netdev.
const MACVLAN: &[(u16, Form)] = &[
    (1, Form::Plain),
    (2, Form::Plain),
    (7, Form::Plain),
    (IFLA_MACVLAN_MACADDR_DATA, Form::Senders),
];
/// Attributes of ipvlan: mode and flags (`ipvlan_nl_changelink()`, `drivers/net/ipvlan/ipvlan_main.c`).
const IPVLAN: &[(u16, Form)] = &[(1, Form::Plain), (2, Form::Plain)];
/// Attributes of a VLAN: flags, priorities of sent frames, priorities of received frames (`vlan_changelink()`,
/// `net/8021q/vlan_netlink.c`).
const VLAN: &[(u16, Form)] = &[
    (IFLA_VLAN_FLAGS, Form::Flags),
    (3, Form::Mappings),
    (4, Form::Mappings),
];

fn forms(kind: &str) -> &'static [(u16, Form)] {
    match kind {
        "macvlan" | "macvtap" => MACVLAN,
        "ipvlan" | "ipvtap" => IPVLAN,
        "vlan" => VLAN,
        _ => &[],
    }
}

/// Adds to `settings` the attributes of the kind of `link` that a program can set, and the reasons why its protocol is
/// down. Adds none if `link` has no kind.
#[cold]
pub(super) fn read(socket: &mut Socket, link: &Link, settings: &mut DeviceSettings) {
    let Some(kind) = &link.kind else {
        return;
    };
    let Ok(present) = Present::read(socket, link.index) else {
        return;
    };
    for (attribute, form) in forms(kind) {
        if let Some(value) = present.text(*attribute, *form) {
            settings.set(&format!("kind/{attribute}"), &value);
        }
    }
    let reason = text(&present.reason);
    settings.set("kind/proto_down_reason", &reason);
}

/// Sets the setting `kind/SETTING` of the netdev `index`.
///
/// # Errors
/// The kernel's error. `InvalidInput`: the netdev's kind has no such setting.
#[cold]
pub(super) fn write(
    socket: &mut Socket,
    index: u32,
    (setting, value): (&str, &str),
) -> Result<(), NetlinkError> {
    let invalid = || NetlinkError::from(io::Error::from(io::ErrorKind::InvalidInput));
    let wanted: Option<Vec<Vec<u8>>> = value.split(',').map(bytes).collect();
    let wanted = wanted.ok_or_else(invalid)?;
    let whole = || wanted.first().cloned().unwrap_or_default();
    if setting == "proto_down_reason" {
        let reason = nested(&[DefaultNla::new(IFLA_PROTO_DOWN_REASON_VALUE, whole())]);
        let list = LinkAttribute::Other(nest(IFLA_PROTO_DOWN_REASON, reason));
        return socket
            .request(&link_messages::set(index, vec![list]), 0)
            .map(drop);
    }
    let present = Present::read(socket, index)?;
    let mut forms = forms(&present.kind).iter();
    let form = forms.find(|(attribute, _)| attribute.to_string() == setting);
    let (attribute, form) = *form.ok_or_else(invalid)?;
    if present.text(attribute, form).as_deref() == Some(value) {
        // an earlier change may have made this change: setting a mode also removes the sender addresses
        return Ok(());
    }
    let items = || wanted.iter().filter(|it| !it.is_empty()).cloned();
    let data = match form {
        Form::Plain => vec![DefaultNla::new(attribute, whole())],
        Form::Flags => {
            let flags = [whole(), VLAN_FLAGS.to_ne_bytes().to_vec()].concat();
            vec![DefaultNla::new(attribute, flags)]
        }
        Form::Senders => {
            let items = items().map(|it| DefaultNla::new(IFLA_MACVLAN_MACADDR, it));
            let items: Vec<DefaultNla> = items.collect();
            let mode = MACADDR_SET.to_ne_bytes().to_vec();
            vec![
                DefaultNla::new(IFLA_MACVLAN_MACADDR_MODE, mode),
                nest(attribute, nested(&items)),
            ]
        }
        Form::Mappings => {
            // a mapping that `value` lacks is set to its default
            let from = |it: &[u8]| it.get(..4).map(<[u8]>::to_vec);
            let is_wanted = |it: &[u8]| wanted.iter().any(|wanted| from(wanted) == from(it));
            let others = present.items(attribute);
            let others = others.filter(|it| !is_wanted(it));
            let others = others.filter_map(|it| Some([from(it)?, vec![0; 4]].concat()));
            let items = items().chain(others);
            let items: Vec<DefaultNla> = items
                .map(|it| DefaultNla::new(IFLA_VLAN_QOS_MAPPING, it))
                .collect();
            vec![nest(attribute, nested(&items))]
        }
    };
    let kind = [present.kind.as_bytes(), &[0]].concat();
    let info = nested(&[
        DefaultNla::new(IFLA_INFO_KIND, kind),
        nest(IFLA_INFO_DATA, nested(&data)),
    ]);
    let info = LinkAttribute::Other(nest(IFLA_LINKINFO, info));
    // `RTM_SETLINK` ignores `IFLA_LINKINFO`
    let message = RouteNetlinkMessage::NewLink(link_messages::message(index, vec![info]));
    socket.request(&message, 0).map(drop)
}

/// State of a netdev as the kernel reports it.
#[derive(Default)]
struct Present {
    kind: String,
    /// `IFLA_INFO_DATA`
    data: Vec<u8>,
    reason: Vec<u8>,
}

impl Present {
    fn read(socket: &mut Socket, index: u32) -> Result<Self, NetlinkError> {
        let answers = socket.request(&link_messages::by_index(index), 0)?;
        let mut present = Self {
            reason: vec![0; 4],
            ..Self::default()
        };
        let lists = answers.bodies().filter_map(|body| body.get(HEADER..));
        for (kind, value) in lists.flat_map(attributes) {
            match kind {
                IFLA_LINKINFO => {
                    present.kind = link_messages::kind_of(value).unwrap_or_default();
                    let data = attribute(value, IFLA_INFO_DATA);
                    present.data = data.unwrap_or_default().to_vec();
                }
                IFLA_PROTO_DOWN_REASON => {
                    let reason = attribute(value, IFLA_PROTO_DOWN_REASON_VALUE);
                    present.reason = reason.unwrap_or_default().to_vec();
                }
                _ => {}
            }
        }
        Ok(present)
    }

    fn items(&self, kind: u16) -> impl Iterator<Item = &[u8]> {
        attributes(attribute(&self.data, kind).unwrap_or_default()).map(|(_, value)| value)
    }

    /// Returns the attribute's value in hexadecimal. For a list, returns the sorted elements, separated by commas. For
    /// [`Form::Plain`], returns `None` if the kernel does not report the attribute.
    fn text(&self, kind: u16, form: Form) -> Option<String> {
        match form {
            Form::Plain => attribute(&self.data, kind).map(text),
            // omits the mask, because the kernel reports only flags that are on
            Form::Flags => {
                let flags = attribute(&self.data, kind).and_then(|it| it.get(..4));
                Some(text(flags.unwrap_or(&[0; 4])))
            }
            Form::Senders | Form::Mappings => {
                let mut items: Vec<String> = self.items(kind).map(text).collect();
                items.sort_unstable();
                // an empty list becomes `,`: an empty text means that the record is of an earlier version without the
                // setting
                Some(if items.is_empty() {
                    ",".into()
                } else {
                    items.join(",")
                })
            }
        }
    }
}

fn nest(attribute: u16, value: Vec<u8>) -> DefaultNla {
    DefaultNla::new(attribute | NLA_F_NESTED, value)
}

pub(super) fn nested(list: &[DefaultNla]) -> Vec<u8> {
    let mut value = vec![0; list.buffer_len()];
    list.emit(&mut value);
    value
}

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    let byte = |digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
    digits.map(byte).collect()
}
