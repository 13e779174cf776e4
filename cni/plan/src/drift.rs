// SPDX-License-Identifier: Apache-2.0
//! Describes a missing operation as a deviation, for CHECK.

use super::locate;
use attachments::{Attachment, Rail};
use rdma_netns::{Child, LinkFlag, NetnsSide, Observed, Op, Route, VfSetting, link::MAIN_TABLE};

/// Describes the deviation that `op` would correct.
pub fn describe(op: &Op, observed: &Observed) -> String {
    let present = |at, name: &str| observed.at(at).and_then(|namespace| namespace.link(name));
    match op {
        Op::MoveRdma { device, .. } => format!("RDMA device {device} is not in the pod"),
        Op::RenameRdma { device, name, .. } => format!("RDMA device {name} is called {device} now"),
        Op::DeleteSubDevice { device, .. } => format!("there is the sub-device {device}"),
        Op::MoveLink { link, name, .. } => {
            format!("{link} is on the host, not in the pod as {name}")
        }
        Op::AddChild {
            at: NetnsSide::Pod,
            name,
            ..
        } => format!("{name} is not in the pod"),
        Op::AddChild { parent, .. } => format!("the pod has lost its child of {parent}"),
        Op::RemoveLink { at, link } => match at {
            NetnsSide::Host => format!("{link} is still on the host, and has to be removed"),
            NetnsSide::Pod => format!("{link} is still in the pod, and has to be removed"),
        },
        Op::RemoveGroup { group } => format!("netdevs of group {group} are in the pod"),
        Op::RenameLink { link, name, .. } => format!("{name} is called {link} now"),
        Op::SetUp { link, up, .. } => format!("{link} is {}", if *up { "down" } else { "up" }),
        Op::SetMtu { at, link, mtu } => match present(*at, link) {
            Some(present) => format!("the MTU of {link} is {}, not {mtu}", present.mtu),
            None => format!("the MTU of {link} is not {mtu}"),
        },
        Op::SetMac { link, mac, .. } => format!("the hardware address of {link} is not {mac}"),
        Op::SetBroadcast { link, mac, .. } => {
            format!("the broadcast address of {link} is not {mac}")
        }
        Op::SetDeviceSetting { link, key, .. } => format!("{key} of {link} differs"),
        Op::SetTxQueueLen { link, packets, .. } => {
            format!("the transmit queue of {link} is not {packets} packets long")
        }
        Op::SetLinkSetting {
            link,
            setting,
            value,
            ..
        } => format!("{setting:?} of {link} is not {value}"),
        Op::SetIpoibMode { link, mode, .. } => {
            format!("IPoIB of {link} is not in {} mode", mode.name())
        }
        Op::SetUmcast { link, on, .. } => {
            format!("umcast of {link} is {}", if *on { "off" } else { "on" })
        }
        Op::SetFlag { link, flag, on, .. } => {
            let flag = match flag {
                LinkFlag::Promisc => "promiscuous mode",
                LinkFlag::AllMulti => "reception of all multicast",
                LinkFlag::Multicast => "multicast",
                LinkFlag::NoArp => "NOARP",
                flag => flag.name(),
            };
            format!("{flag} of {link} is {}", if *on { "off" } else { "on" })
        }
        Op::SetVf {
            pf,
            number,
            setting,
        } => match present_of_vf(observed, pf, *number, setting) {
            Some(present) => format!("vf {number} of {pf} has {present}, not {setting}"),
            None => format!("vf {number} of {pf} is not known to have {setting}"),
        },
        Op::RebindDriver { device, .. } => {
            format!("{device} has not taken over the GUIDs that are set of it")
        }
        Op::BindDriver { device, driver } => format!("{driver} is not bound to {device}"),
        Op::SetAlias { link, .. } => format!("{link} has another alias"),
        Op::SetAltName {
            link,
            name,
            present,
            ..
        } => {
            let verb = if *present { "has lost" } else { "has got" };
            format!("{link} {verb} the alternative name {name}")
        }
        Op::SetSysctl {
            at,
            link,
            key,
            value,
        } => {
            let (family, key_name) = key.split_once('/').unwrap_or(("", key));
            let setting = format!("net.{family}.conf.{link}.{key_name}");
            match present(*at, link).and_then(|present| present.sysctls.get(key)) {
                Some(present) => format!("{setting} is {present}, not {value}"),
                None => format!("{setting} is not {value}"),
            }
        }
        Op::AddAddress { at, link, address }
            if present(*at, link).is_some_and(|link| link.address(address).is_some()) =>
        {
            let (ip, prefix) = (address.ip, address.prefix);
            match address.metric {
                Some(metric) => format!(
                    "the address {ip}/{prefix} of {link} differs from its record (metric {metric})"
                ),
                None => format!("the address {ip}/{prefix} of {link} differs from its record"),
            }
        }
        Op::AddAddress { link, address, .. } => {
            let end = address.peer.map(|peer| format!(" peer {peer}"));
            format!(
                "{link} has lost its address {}{}/{}",
                address.ip,
                end.unwrap_or_default(),
                address.prefix
            )
        }
        Op::RemoveAddress { link, address, .. } => {
            format!(
                "{link} has got the address {}/{}",
                address.ip, address.prefix
            )
        }
        Op::AddRoute { at, link, route }
            if present(*at, link)
                .is_some_and(|link| link.routes.iter().any(|it| replaces(it, route))) =>
        {
            format!(
                "the route of {link} to {}/{} differs from its record",
                route.destination, route.prefix
            )
        }
        Op::AddRoute { link, route, .. } => {
            let (destination, prefix) = (route.destination, route.prefix);
            match route.table {
                MAIN_TABLE => format!("{link} has lost its route to {destination}/{prefix}"),
                table => {
                    format!("{link} has lost its route to {destination}/{prefix} in table {table}")
                }
            }
        }
        Op::RemoveRoute { link, route, .. } => {
            format!(
                "{link} has got a route to {}/{}",
                route.destination, route.prefix
            )
        }
        Op::AddRule { rule, .. } => format!("the rule \"{rule}\" is gone"),
        Op::RemoveRule { rule, .. } => format!("there is the rule \"{rule}\""),
        Op::Announce { link, address, .. } => {
            format!("{link} has not announced {address} to its neighbours")
        }
        Op::AddPnet { entry, .. } => {
            let port = entry
                .rdma
                .as_ref()
                .map(|(device, port)| format!("port {port} of {device}"));
            let what = entry.netdev.clone().or(port).unwrap_or_default();
            format!("{what} has lost its pnet id {}", entry.name)
        }
        Op::RemovePnet { id, .. } => format!("there is the pnet id {id}"),
        Op::AddUeid { ueid } => format!("the kernel does not know the user EID {ueid} any more"),
        Op::RemoveUeid { ueid } => format!("the kernel knows the user EID {ueid}"),
        Op::SetMaxLinks { links } => {
            format!("net.smc.smcr_max_links_per_lgr of the pod is not {links}")
        }
        Op::SetTcp2Smc { on } => format!("net.smc.tcp2smc is {}", u8::from(!on)),
    }
}

/// Describes the children in the pod whose mode differs from the mode at ADD, a sentence for each. A pod with
/// `NET_ADMIN` can change the mode (`macvlan_changelink()`, `drivers/net/macvlan.c`; `ipvlan_nl_changelink()`,
/// `drivers/net/ipvlan/ipvlan_main.c`).
pub fn of_children(attachment: &Attachment, observed: &Observed) -> Vec<String> {
    let rails = attachment.rails.iter();
    rails.filter_map(|rail| of_child(rail, observed)).collect()
}

fn of_child(rail: &Rail, observed: &Observed) -> Option<String> {
    // the partition of an IPoIB child cannot change, and the plan includes its mode
    let shared = rail.shared.as_ref().filter(|_| !rail.has_ipoib_child())?;
    let link = locate::child(rail, shared, observed)?;
    let (found, made) = (link.child?, shared.child);
    let (name, parent) = (&link.name, &shared.parent);
    let differs = format!("{name} is {found}, not {made}");
    match found {
        _ if found == made => None,
        Child::Ipvlan(_) => Some(format!(
            "{differs}: all ipvlan children of {parent} are, and a pod with NET_ADMIN has set it; the next ADD on \
             {parent} sets it back"
        )),
        _ => Some(format!(
            "{differs}: the mode decides which frames of {parent} it takes in, mode source takes in the frames of \
             any senders that it names"
        )),
    }
}

/// Returns the present setting of function `number` of `pf` that has the kind of `setting`.
fn present_of_vf<'a>(
    observed: &'a Observed,
    pf: &str,
    number: u32,
    setting: &VfSetting,
) -> Option<&'a VfSetting> {
    let mut functions = observed.vfs.values();
    let function = functions.find(|vf| *vf.pf == *pf && vf.number == number)?;
    function.setting(setting.kind())
}

/// Returns true if `present` has the destination, table and gateway of `desired`. Other attributes may differ.
fn replaces(present: &Route, desired: &Route) -> bool {
    present.same_destination(desired) && present.gateway == desired.gateway
}
