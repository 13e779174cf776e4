//! A netdev as it will be once the changes planned so far are made. Every step adds its
//! change only if it makes a difference, and knows what the kernel drops with it.

use rdma_netns::{
    Address, HardwareAddress, InterfaceName, Link, LinkFlag, Op, Place, Route,
    link::IFA_F_OPTIMISTIC,
};

pub(super) struct Draft<'a> {
    at: Place,
    link: Link,
    ops: &'a mut Vec<Op>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(at: Place, link: &Link, ops: &'a mut Vec<Op>) -> Self {
        Self {
            at,
            link: link.clone(),
            ops,
        }
    }

    /// Moved to the other namespace: down, without addresses, routes and settings.
    pub(super) fn relocate(&mut self, to: Place, name: &InterfaceName) {
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
        self.link.up = false;
        self.link.addresses.clear();
        self.link.routes.clear();
        self.link.sysctls.clear();
    }

    /// Renamed, and down for it: kernels before 6.2 rename no netdev that is up.
    pub(super) fn rename(&mut self, name: &InterfaceName) {
        if self.link.name == *name {
            return;
        }
        self.up(false);
        let (at, link) = (self.at, self.name());
        self.ops.push(Op::RenameLink {
            at,
            link,
            name: name.clone(),
        });
        self.link.name = name.clone();
    }

    /// Up or down; going down flushes IPv6 addresses and all routes.
    pub(super) fn up(&mut self, up: bool) {
        if self.link.up == up {
            return;
        }
        let (at, link) = (self.at, self.name());
        self.ops.push(Op::SetUp { at, link, up });
        self.link.up = up;
        if !up {
            self.link.routes.clear();
            self.link.addresses.retain(|address| address.ip.is_ipv4());
        }
    }

    pub(super) fn mtu(&mut self, mtu: u32) {
        if self.link.mtu != mtu {
            let (at, link) = (self.at, self.name());
            self.ops.push(Op::SetMtu { at, link, mtu });
            self.link.mtu = mtu;
        }
    }

    /// The hardware address, and down for it: not every driver changes it while up.
    pub(super) fn mac(&mut self, mac: &HardwareAddress) {
        if self.link.mac == *mac {
            return;
        }
        self.up(false);
        let (at, link) = (self.at, self.name());
        self.ops.push(Op::SetMac {
            at,
            link,
            mac: mac.clone(),
        });
        self.link.mac = mac.clone();
    }

    pub(super) fn tx_queue_len(&mut self, packets: u32) {
        if self.link.tx_queue_len != packets {
            let (at, link) = (self.at, self.name());
            self.ops.push(Op::SetTxQueueLen { at, link, packets });
        }
    }

    pub(super) fn flags(&mut self, flags: &[LinkFlag]) {
        use LinkFlag::{AllMulti, Multicast, NoArp, Promisc};
        for flag in [Promisc, AllMulti, Multicast, NoArp] {
            let on = flags.contains(&flag);
            if self.link.has(flag) != on {
                let (at, link) = (self.at, self.name());
                self.ops.push(Op::SetFlag { at, link, flag, on });
            }
        }
    }

    pub(super) fn alias(&mut self, alias: Option<&str>) {
        if self.link.alias.as_deref() != alias {
            let (at, link) = (self.at, self.name());
            self.ops.push(Op::SetAlias {
                at,
                link,
                alias: alias.unwrap_or_default().to_owned(),
            });
        }
    }

    /// Takes away alternative names that `wanted` does not have.
    pub(super) fn drop_alt_names(&mut self, wanted: &[String]) {
        let (at, link) = (self.at, self.name());
        let (kept, dropped) = self
            .link
            .alt_names
            .drain(..)
            .partition(|name| wanted.contains(name));
        self.link.alt_names = kept;
        let dropped: Vec<String> = dropped;
        self.ops
            .extend(dropped.into_iter().map(|name| Op::SetAltName {
                at,
                link: link.clone(),
                name,
                present: false,
            }));
    }

    /// Gives it the alternative names of `wanted` that it does not have.
    pub(super) fn add_alt_names(&mut self, wanted: &[String]) {
        for name in wanted {
            if !self.link.alt_names.contains(name) {
                let (at, link) = (self.at, self.name());
                self.ops.push(Op::SetAltName {
                    at,
                    link,
                    name: name.clone(),
                    present: true,
                });
            }
        }
    }

    pub(super) fn sysctl(&mut self, key: &str, value: i32) {
        if self.link.sysctls.get(key) != Some(&value) {
            let (at, link) = (self.at, self.name());
            self.ops.push(Op::SetSysctl {
                at,
                link,
                key: key.to_owned(),
                value,
            });
        }
    }

    pub(super) fn address(&mut self, wanted: &Address) {
        let is_same = |present: &Address| {
            // the kernel takes IFA_F_OPTIMISTIC away when detection ends
            (present.flags ^ wanted.flags) & !IFA_F_OPTIMISTIC == 0
                && present.metric == wanted.metric
                // the kernel derives the scope of an IPv6 address from the address
                && (wanted.ip.is_ipv6() || present.scope == wanted.scope)
                && present.label == wanted.label
        };
        if !self.link.address(wanted).is_some_and(is_same) {
            let (at, link) = (self.at, self.name());
            self.ops.push(Op::AddAddress {
                at,
                link,
                address: wanted.clone(),
            });
        }
    }

    pub(super) fn route(&mut self, wanted: &Route) {
        if !self.link.routes.contains(wanted) {
            let (at, link) = (self.at, self.name());
            self.ops.push(Op::AddRoute {
                at,
                link,
                route: wanted.clone(),
            });
        }
    }

    fn name(&self) -> InterfaceName {
        self.link.name.clone()
    }
}
