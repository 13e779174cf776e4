// SPDX-License-Identifier: Apache-2.0
//! Describes deviations from an attachment's record, for CHECK, `doctor` and ADD's warnings: operations that a plan still
//! has, and changed modes of children.

use super::locate;
use attachments::{Attachment, Rail, Shared};
use rdma_netns::{
    Child, InterfaceName, Link, LinkChange, NetnsSide, Observed, Op, RdmaMode, Route, VfSetting,
    link::MAIN_TABLE,
};
use std::fmt::Display;

/// Describes the deviation that `op` would correct.
pub fn describe(op: &Op, observed: &Observed) -> String {
    match op {
        Op::MoveRdma { device, .. } => format!("RDMA device {device} is not in the pod"),
        Op::RenameRdma { device, name, .. } => format!("RDMA device {name} is called {device} now"),
        Op::MoveLink { link, name, .. } => {
            format!("{link} is on the host, not in the pod as {name}")
        }
        Op::AddChild {
            at: NetnsSide::Pod,
            name,
            ..
        } => format!("{name} is not in the pod"),
        Op::AddChild { parent, .. } => format!("the pod's child of {parent} is missing"),
        Op::Link { at, link, change } => describe_change(change, (*at, link), observed),
        Op::SetVf {
            pf,
            number,
            setting,
        } => match present_of_vf(observed, pf, *number, setting) {
            Some(present) => format!("vf {number} of {pf} has {present}, not {setting}"),
            None => format!("vf {number} of {pf} is not known to have {setting}"),
        },
        Op::RebindDriver { device, .. } => {
            format!("{device} has not adopted its configured GUIDs")
        }
        Op::AddRule { rule, .. } => format!("the rule \"{rule}\" is gone"),
        Op::AddPnet { entry, .. } => {
            let port = entry
                .rdma
                .as_ref()
                .map(|(device, port)| format!("port {port} of {device}"));
            let what = entry.netdev.clone().or(port).unwrap_or_default();
            format!("{what} has lost its pnet id {}", entry.name)
        }
        Op::AddUeid { ueid } => format!("the kernel does not know the user EID {ueid} any more"),
        Op::SetMaxLinks { links } => {
            format!("net.smc.smcr_max_links_per_lgr of the pod is not {links}")
        }
        Op::SetTcp2Smc { on } => format!("net.smc.tcp2smc is {}", u8::from(!on)),
        // an attachment's plan has no such operation
        op => missing(op),
    }
}

fn missing(change: impl Display) -> String {
    format!("this change is missing: {change}")
}

fn describe_change(
    change: &LinkChange,
    (at, link): (NetnsSide, &InterfaceName),
    observed: &Observed,
) -> String {
    let present = observed.at(at).and_then(|namespace| namespace.link(link));
    match change {
        LinkChange::Rename(name) => format!("{name} is called {link} now"),
        LinkChange::Up(up) => format!("{link} is {}", if *up { "down" } else { "up" }),
        LinkChange::Mtu(mtu) => match present {
            Some(present) => format!("the MTU of {link} is {}, not {mtu}", present.mtu),
            None => format!("the MTU of {link} is not {mtu}"),
        },
        LinkChange::Mac(mac) => format!("the hardware address of {link} is not {mac}"),
        LinkChange::IpoibMode(mode) => format!("IPoIB of {link} is not in {} mode", mode.name()),
        LinkChange::Umcast(on) => {
            format!("umcast of {link} is {}", if *on { "off" } else { "on" })
        }
        LinkChange::Alias(_) => format!("{link} has another alias"),
        LinkChange::Sysctl { key, value } => {
            let (family, key_name) = key.split_once('/').unwrap_or(("", key));
            let setting = format!("net.{family}.conf.{link}.{key_name}");
            match present.and_then(|present| present.sysctls.get(key)) {
                Some(present) => format!("{setting} is {present}, not {value}"),
                None => format!("{setting} is not {value}"),
            }
        }
        LinkChange::AddAddress(address) => {
            let (ip, prefix) = (address.ip, address.prefix);
            match (
                present.and_then(|link| link.address(address)),
                address.metric,
            ) {
                (Some(_), Some(metric)) => format!(
                    "the address {ip}/{prefix} of {link} differs from its record \
                     (recorded metric {metric})"
                ),
                (Some(_), None) => {
                    format!("the address {ip}/{prefix} of {link} differs from its record")
                }
                (None, _) => {
                    let end = address.peer.map(|peer| format!(" peer {peer}"));
                    let end = end.unwrap_or_default();
                    format!("{link} has lost its address {ip}{end}/{prefix}")
                }
            }
        }
        LinkChange::AddRoute(route) => {
            let to = format!("{}/{}", route.destination, route.prefix);
            let mut routes = present.iter().flat_map(|link| &link.routes);
            match (routes.any(|it| replaces(it, route)), route.table) {
                (true, _) => format!("the route of {link} to {to} differs from its record"),
                (false, MAIN_TABLE) => format!("{link} has lost its route to {to}"),
                (false, table) => format!("{link} has lost its route to {to} in table {table}"),
            }
        }
        change => missing(Op::link(at, link, change.clone())),
    }
}

/// Describes a change of the RDMA subsystem's mode after which the pod does not see the RDMA devices that it shares.
/// The mode changes while pods run if ib_core is loaded again.
pub fn of_mode(attachment: &Attachment, observed: &Observed) -> Option<String> {
    let modes = (attachment.rdma_mode, observed.rdma_mode);
    let devices = attachment.rails.iter().filter_map(|it| it.rdma.as_ref());
    let devices: Vec<&str> = devices.map(|it| &*it.name).collect();
    let is_lost = modes == (Some(RdmaMode::Shared), Some(RdmaMode::Exclusive));
    (is_lost && !devices.is_empty()).then(|| {
        let devices = devices.join(", ");
        format!("RDMA is in exclusive mode now, so the pod does not see {devices}: delete the pod")
    })
}

/// Describes the macvlan and ipvlan children in the pod whose mode is not the mode that ADD set, one sentence for each.
/// A pod with `NET_ADMIN` can change the mode (`macvlan_changelink()`, `drivers/net/macvlan.c`;
/// `ipvlan_nl_changelink()`, `drivers/net/ipvlan/ipvlan_main.c`).
pub fn of_children(attachment: &Attachment, observed: &Observed) -> Vec<String> {
    let rails = attachment.rails.iter();
    let children = rails.filter_map(|rail| PodChild::of(rail, observed));
    children.filter_map(|child| child.changed()).collect()
}

/// The macvlan or ipvlan child of a rail, in its pod.
pub struct PodChild<'a> {
    link: &'a Link,
    found: Child,
    shared: &'a Shared,
}

impl<'a> PodChild<'a> {
    /// Returns the child of `rail`. `None`: the rail has no such child, or the child is not in the pod.
    pub fn of(rail: &'a Rail, observed: &'a Observed) -> Option<Self> {
        // omits IPoIB children: a pod cannot change their partition, and a changed mode is an operation of the plan
        let shared = rail.shared.as_ref().filter(|_| !rail.has_ipoib_child())?;
        let link = locate::child(rail, shared, observed)?;
        Some(Self {
            link,
            found: link.child?,
            shared,
        })
    }

    /// Describes the child if its mode is not the mode that ADD set ([`of_children`]).
    pub fn changed(&self) -> Option<String> {
        let (found, made) = (self.found, self.shared.child);
        let (name, parent) = (&self.link.name, &self.shared.parent);
        let differs = format!("{name} is {found}, not {made}");
        match found {
            _ if found == made => None,
            Child::Ipvlan { .. } => Some(format!(
                "{differs}: a pod with NET_ADMIN changed the mode of all ipvlan children of {parent}; the next ADD on \
                 {parent} restores it"
            )),
            _ => Some(format!(
                "{differs}: the mode determines which frames of {parent} {name} receives; a netdev in mode source \
                 receives the frames of the senders that it lists"
            )),
        }
    }
}

/// Returns the present value of `setting` for virtual function `number` of `pf`.
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

/// Returns true if `present` and `desired` have the same destination, table and gateway. Other attributes may differ.
fn replaces(present: &Route, desired: &Route) -> bool {
    present.same_destination(desired) && present.gateway == desired.gateway
}
