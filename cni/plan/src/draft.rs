// SPDX-License-Identifier: Apache-2.0
//! Planned state of a netdev after the operations so far. Each step adds an operation only if the operation changes the
//! state. Each step also models the kernel's side effects.

use super::function::Function;
use attachments::Attribute;
use rdma_netns::{
    Address, Child, DeviceSettings, HardwareAddress, InterfaceName, Ipoib, IpoibMode, Link,
    LinkChange, LinkFlag, LinkSetting, LinkType, NetnsSide, Op, Route, VfSetting,
    link::{IFA_F_NODAD, IFA_F_OPTIMISTIC},
};
use std::collections::BTreeMap;

/// Placeholder for an MTU that the kernel chooses. The value is larger than any MTU.
const UNKNOWN_MTU: u32 = u32::MAX;

/// Length of the part of an IPoIB hardware address before the port's GUID, bytes.
const IPOIB_OWN: usize = 12;

pub(super) struct LinkPlanner<'a> {
    at: NetnsSide,
    link: Link,
    given_up: Vec<Attribute>,
    ops: &'a mut Vec<Op>,
}

impl<'a> LinkPlanner<'a> {
    pub(super) fn new(at: NetnsSide, link: &Link, ops: &'a mut Vec<Op>) -> Self {
        Self {
            at,
            link: link.clone(),
            given_up: vec![],
            ops,
        }
    }

    /// Makes later steps leave these attributes unchanged.
    pub(super) fn give_up(&mut self, attributes: &[Attribute]) {
        self.given_up.extend_from_slice(attributes);
    }

    /// Adds a change of the netdev. Returns false if `given_up` contains the changed attribute.
    fn set(&mut self, change: LinkChange) -> bool {
        self.push(Op::link(self.at, &self.link.name, change))
    }

    /// Adds an operation. Returns false if `given_up` contains the changed attribute.
    fn push(&mut self, op: Op) -> bool {
        let attribute = Attribute::of(&op);
        let is_given_up = attribute.is_some_and(|it| self.given_up.contains(&it));
        if !is_given_up {
            self.ops.push(op);
        }
        !is_given_up
    }

    /// Plans a new child of `parent`, which the kernel makes in the namespace `at`.
    pub(super) fn child(
        at: NetnsSide,
        child: Child,
        parent: &Link,
        (name, mtu): (&InterfaceName, u32),
        ops: &'a mut Vec<Op>,
    ) -> Self {
        ops.push(Op::AddChild {
            at,
            parent: parent.name.clone(),
            child,
            name: name.clone(),
            mtu,
        });
        let mut link = Link {
            name: name.clone(),
            alias: None,
            mtu,
            ..parent.clone()
        };
        if let Child::Ipoib { pkey, .. } = child {
            link.ipoib = Some(Ipoib {
                pkey,
                mode: IpoibMode::Datagram,
                umcast: false,
            });
            link.mtu = UNKNOWN_MTU;
        }
        forget(&mut link);
        Self {
            at,
            link,
            given_up: vec![],
            ops,
        }
    }

    /// Returns true if the kernel would refuse IPv6 addresses on the netdev.
    pub(super) fn is_ipv6_disabled(&self) -> bool {
        self.link.sysctls.get("ipv6/disable_ipv6") == Some(&1)
    }

    /// Plans the move to the other namespace. The kernel sets the netdev down during the move, removes its addresses
    /// and routes, and resets its sysctls.
    pub(super) fn relocate(&mut self, to: NetnsSide, name: &InterfaceName) {
        if self.at == to {
            return;
        }
        let link = self.name();
        self.ops.push(Op::MoveLink {
            link,
            from: self.at,
            to,
            name: name.clone(),
        });
        self.at = to;
        self.link.name = name.clone();
        forget(&mut self.link);
    }

    /// Plans another name. Sets the netdev down first, because kernels before 6.2 refuse to rename a netdev that is up.
    pub(super) fn rename(&mut self, name: &InterfaceName) {
        if self.link.name == *name {
            return;
        }
        self.up(false);
        self.set(LinkChange::Rename(name.clone()));
        self.link.name = name.clone();
    }

    /// Plans the state up or down. When a netdev goes down, the kernel removes its IPv6 addresses and all its routes.
    pub(super) fn up(&mut self, up: bool) {
        if self.link.up == up {
            return;
        }
        if !self.set(LinkChange::Up(up)) {
            return;
        }
        self.link.up = up;
        if !up {
            self.link.routes.clear();
            self.link.addresses.retain(|address| address.ip.is_ipv4());
        }
    }

    /// Plans the send mode of an IPoIB netdev. The kernel also sets the MTU to the largest MTU of the mode.
    pub(super) fn ipoib_mode(&mut self, mode: IpoibMode) {
        let Some(ipoib) = self.link.ipoib.filter(|it| it.mode != mode) else {
            return;
        };
        if self.set(LinkChange::IpoibMode(mode)) {
            self.link.ipoib = Some(Ipoib { mode, ..ipoib });
            self.link.mtu = UNKNOWN_MTU;
        }
    }

    pub(super) fn umcast(&mut self, on: bool) {
        if self.link.ipoib.is_some_and(|it| it.umcast != on) {
            self.set(LinkChange::Umcast(on));
        }
    }

    /// Plans the MTU `mtu` if the present MTU is larger.
    pub(super) fn mtu_at_most(&mut self, mtu: u32) {
        if self.link.mtu > mtu {
            self.mtu(mtu);
        }
    }

    pub(super) fn mtu(&mut self, mtu: u32) {
        if self.link.mtu != mtu && self.set(LinkChange::Mtu(mtu)) {
            self.link.mtu = mtu;
        }
    }

    /// Plans the hardware address. Sets the netdev down first, because some drivers refuse a new address on a netdev
    /// that is up.
    pub(super) fn mac(&mut self, mac: &HardwareAddress) {
        let mut mac = mac.clone();
        if self.link.link_type == LinkType::Infiniband && self.link.mac.0.len() == mac.0.len() {
            // the kernel accepts only a change of the port GUID, at the end of the address: queue pair and subnet
            // prefix of a new netdev are the kernel's choice (`ipoib_check_lladdr()`, `ipoib_main.c`)
            let own = mac.0.len().min(IPOIB_OWN);
            mac.0[..own].copy_from_slice(&self.link.mac.0[..own]);
        }
        if self.link.mac == mac || self.given_up.contains(&Attribute::Mac) {
            return;
        }
        self.up(false);
        self.set(LinkChange::Mac(mac.clone()));
        self.link.mac = mac;
    }

    /// Plans the broadcast address. `None`: the record has no broadcast address.
    pub(super) fn broadcast(&mut self, mac: Option<&HardwareAddress>) {
        let differs = |mac: &&HardwareAddress| self.link.broadcast.as_ref() != Some(*mac);
        if let Some(mac) = mac.filter(differs).cloned() {
            self.set(LinkChange::Broadcast(mac));
        }
    }

    /// Plans the settings of [`DeviceSettings`].
    pub(super) fn device_settings(&mut self, desired: &DeviceSettings, present: &DeviceSettings) {
        for (key, value) in desired.lacking(present) {
            let (key, value) = (key.to_owned(), value.to_owned());
            let link = self.name();
            self.push(Op::SetDeviceSetting { link, key, value });
        }
    }

    pub(super) fn tx_queue_len(&mut self, packets: u32) {
        if self.link.tx_queue_len != packets {
            self.set(LinkChange::TxQueueLen(packets));
        }
    }

    pub(super) fn settings(&mut self, desired: &BTreeMap<LinkSetting, u32>) {
        for (setting, value) in desired {
            if self.link.settings.get(setting) != Some(value) {
                self.set(LinkChange::Setting(*setting, *value));
            }
        }
    }

    pub(super) fn flags(&mut self, flags: &[LinkFlag]) {
        for flag in LinkFlag::ALL {
            let on = flags.contains(&flag);
            if self.link.has(flag) != on {
                self.set(LinkChange::Flag(flag, on));
            }
        }
    }

    /// Plans the settings that the physical function makes for the virtual function.
    pub(super) fn vf<'b>(
        &mut self,
        function: &Function<'_>,
        desired: impl Iterator<Item = &'b VfSetting>,
    ) {
        for op in function.lacks(desired) {
            self.push(op);
        }
    }

    pub(super) fn alias(&mut self, alias: Option<&str>) {
        if self.link.alias.as_deref() != alias {
            self.set(LinkChange::Alias(alias.unwrap_or_default().to_owned()));
        }
    }

    /// Removes alternative names that `desired` does not have.
    pub(super) fn drop_alt_names(&mut self, desired: &[String]) {
        let names = std::mem::take(&mut self.link.alt_names);
        let (kept, dropped): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| desired.contains(name));
        self.link.alt_names = kept;
        for name in dropped {
            let present = false;
            self.set(LinkChange::AltName { name, present });
        }
    }

    /// Adds the alternative names of `desired` that the netdev does not have.
    pub(super) fn add_alt_names(&mut self, desired: &[String]) {
        for name in desired {
            if !self.link.alt_names.contains(name) {
                let (name, present) = (name.clone(), true);
                self.set(LinkChange::AltName { name, present });
            }
        }
    }

    pub(super) fn sysctl(&mut self, key: &str, value: i32) {
        if self.link.sysctls.get(key) != Some(&value) {
            let key = key.to_owned();
            self.set(LinkChange::Sysctl { key, value });
        }
    }

    /// Plans IPv4 addresses in order, and IPv6 addresses in reverse order. The kernel lists the newest IPv6 address
    /// first (`ipv6_link_dev_addr()`, `net/ipv6/addrconf.c`).
    pub(super) fn addresses<'b>(
        &mut self,
        desired: impl DoubleEndedIterator<Item = &'b Address> + Clone,
    ) {
        let ipv4 = desired.clone().filter(|address| address.ip.is_ipv4());
        ipv4.for_each(|address| self.address(address));
        let ipv6 = desired.rev().filter(|address| address.ip.is_ipv6());
        ipv6.for_each(|address| self.address(address));
    }

    fn address(&mut self, desired: &Address) {
        let is_same = |present: &Address| {
            // the kernel removes IFA_F_OPTIMISTIC when duplicate address detection ends
            (present.flags ^ desired.flags) & !IFA_F_OPTIMISTIC == 0
                && present.metric == desired.metric
                // the kernel derives the scope of an IPv6 address itself
                && (desired.ip.is_ipv6() || present.scope == desired.scope)
                && present.label == desired.label
        };
        let present = self.link.address(desired);
        if !present.is_some_and(is_same) {
            if self.at == NetnsSide::Host && present.is_none() && desired.ip.is_ipv6() {
                // add the address without duplicate address detection, which already ran on the host: a route can use
                // the address as source only after the detection
                let flags = desired.flags & !IFA_F_OPTIMISTIC | IFA_F_NODAD;
                self.set(LinkChange::AddAddress(Address {
                    flags,
                    ..desired.clone()
                }));
                if flags == desired.flags {
                    return;
                }
            }
            self.set(LinkChange::AddAddress(desired.clone()));
        }
    }

    pub(super) fn route(&mut self, desired: &Route) {
        if !self.link.routes.iter().any(|it| it.same_as(desired)) {
            self.set(LinkChange::AddRoute(desired.clone()));
        }
    }

    fn name(&self) -> InterfaceName {
        self.link.name.clone()
    }
}

/// Clears the state that the kernel removes or resets when a netdev moves to another namespace.
fn forget(link: &mut Link) {
    link.up = false;
    link.addresses.clear();
    link.routes.clear();
    link.sysctls = Default::default();
}
