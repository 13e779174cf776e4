// SPDX-License-Identifier: Apache-2.0
//! From an [`Op`] to the rule that it falls under.

use crate::world::{HOST, Refusal, World};
use nix::errno::Errno;
use rdma_netns::{NetnsId, Op, Place};

impl World {
    /// Makes the one change `op`; `pod` is the namespace that it may name. Tests use it
    /// for what people and pods do on their own, too.
    pub fn execute(&mut self, op: &Op, pod: Option<NetnsId>) -> Result<(), Refusal> {
        let done = self.make(op, pod);
        self.refresh_gids();
        done
    }

    fn make(&mut self, op: &Op, pod: Option<NetnsId>) -> Result<(), Refusal> {
        let at = |place: &Place| match place {
            Place::Host => Ok(HOST),
            Place::Pod => pod.ok_or(Refusal::from(Errno::EINVAL)),
        };
        match op {
            Op::MoveRdma { device, from, to } => self.move_rdma(device, at(from)?, at(to)?),
            Op::MoveLink {
                link,
                from,
                to,
                name,
            } => self.move_link(at(from)?, at(to)?, link, name),
            Op::AddChild {
                parent,
                child,
                name,
                mtu,
            } => self.add_child(at(&Place::Pod)?, parent, *child, name, *mtu),
            Op::RemoveLink { at: place, link } => self.remove_link(at(place)?, link),
            Op::RenameLink {
                at: place,
                link,
                name,
            } => self.rename_link(at(place)?, link, name),
            Op::SetUp {
                at: place,
                link,
                up,
            } => self.set_up(at(place)?, link, *up),
            Op::SetMtu {
                at: place,
                link,
                mtu,
            } => self.set_mtu(at(place)?, link, *mtu),
            Op::SetMac {
                at: place,
                link,
                mac,
            } => self.set_mac(at(place)?, link, mac),
            Op::SetTxQueueLen {
                at: place,
                link,
                packets,
            } => {
                self.netdev(at(place)?, link)?.link.tx_queue_len = *packets;
                Ok(())
            }
            Op::SetLinkSetting {
                at: place,
                link,
                setting,
                value,
            } => {
                let netdev = self.netdev(at(place)?, link)?;
                netdev.link.settings.insert(*setting, *value);
                Ok(())
            }
            Op::SetFlag {
                at: place,
                link,
                flag,
                on,
            } => self.set_flag(at(place)?, link, *flag, *on),
            Op::SetAlias {
                at: place,
                link,
                alias,
            } => {
                let alias = Some(alias.clone()).filter(|alias| !alias.is_empty());
                self.netdev(at(place)?, link)?.link.alias = alias;
                Ok(())
            }
            Op::SetAltName {
                at: place,
                link,
                name,
                present,
            } => self.set_alt_name(at(place)?, link, name, *present),
            Op::SetSysctl {
                at: place,
                link,
                key,
                value,
            } => self.set_sysctl(at(place)?, link, key, *value),
            Op::AddAddress {
                at: place,
                link,
                address,
            } => self.add_address(at(place)?, link, address),
            Op::RemoveAddress {
                at: place,
                link,
                address,
            } => self.remove_address(at(place)?, link, address),
            Op::AddRoute {
                at: place,
                link,
                route,
            } => self.add_route(at(place)?, link, route),
            Op::RemoveRoute {
                at: place,
                link,
                route,
            } => self.remove_route(at(place)?, link, route),
            Op::AddRule { at: place, rule } => self.add_rule(at(place)?, rule),
            Op::RemoveRule { at: place, rule } => self.remove_rule(at(place)?, rule),
            Op::Announce {
                at: place,
                link,
                address,
            } => self.announce(at(place)?, link, *address),
            Op::AddPnet { at: place, entry } => self.add_pnet(at(place)?, entry),
            Op::RemovePnet { at: place, id } => self.remove_pnet(at(place)?, id),
            Op::AddUeid { ueid } => self.add_ueid(ueid),
            Op::RemoveUeid { ueid } => self.remove_ueid(ueid),
            Op::SetMaxLinks { links } => self.set_max_links(at(&Place::Pod)?, *links),
            Op::SetTcp2Smc { on } => self.set_tcp2smc(at(&Place::Pod)?, *on),
        }
    }
}
