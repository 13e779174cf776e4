// SPDX-License-Identifier: Apache-2.0
//! From an [`Op`] to the rule that it falls under.

use crate::world::{HOST, Refusal, World};
use nix::errno::Errno;
use rdma_netns::{NetnsId, NetnsSide, Op};

impl World {
    /// Makes the one change `op`; `pod` is the namespace that it may name. Tests use it
    /// for what people and pods do on their own, too.
    pub fn execute(&mut self, op: &Op, pod: Option<NetnsId>) -> Result<(), Refusal> {
        let done = self.make(op, pod);
        self.refresh_gids();
        done
    }

    fn make(&mut self, op: &Op, pod: Option<NetnsId>) -> Result<(), Refusal> {
        let at = |side: &NetnsSide| match side {
            NetnsSide::Host => Ok(HOST),
            NetnsSide::Pod => pod.ok_or(Refusal {
                errno: Errno::EINVAL,
                message: Some("the pod's namespace was not given"),
            }),
        };
        match op {
            Op::MoveRdma { device, from, to } => self.move_rdma(device, at(from)?, at(to)?),
            Op::RenameRdma {
                at: side,
                device,
                name,
            } => self.rename_rdma(device, name, at(side)?),
            Op::DeleteSubDevice { at: side, device } => self.delete_sub_device(device, at(side)?),
            Op::MoveLink {
                link,
                from,
                to,
                name,
            } => self.move_link(at(from)?, at(to)?, link, name),
            Op::AddChild {
                at: side,
                parent,
                child,
                name,
                mtu,
            } => self.add_child(at(side)?, parent, *child, name, *mtu),
            Op::RemoveLink { at: side, link } => self.remove_link(at(side)?, link),
            Op::RemoveGroup { group } => self.remove_group(at(&NetnsSide::Pod)?, *group),
            Op::RenameLink {
                at: side,
                link,
                name,
            } => self.rename_link(at(side)?, link, name),
            Op::SetUp { at: side, link, up } => self.set_up(at(side)?, link, *up),
            Op::SetMtu {
                at: side,
                link,
                mtu,
            } => self.set_mtu(at(side)?, link, *mtu),
            Op::SetMac {
                at: side,
                link,
                mac,
            } => self.set_mac(at(side)?, link, mac),
            Op::SetVf {
                pf,
                number,
                setting,
            } => self.set_vf(pf, *number, setting),
            Op::RebindDriver { device, driver } => self.rebind_driver(device, driver),
            Op::BindDriver { device, driver } => self.bind_driver(device, driver),
            Op::SetTxQueueLen {
                at: side,
                link,
                packets,
            } => {
                self.netdev(at(side)?, link)?.link.tx_queue_len = *packets;
                Ok(())
            }
            Op::SetBroadcast {
                at: side,
                link,
                mac,
            } => {
                self.netdev(at(side)?, link)?.link.broadcast = Some(mac.clone());
                Ok(())
            }
            Op::SetDeviceSetting { link, key, value } => {
                self.set_device_setting(HOST, link, (key, value))
            }
            Op::SetLinkSetting {
                at: side,
                link,
                setting,
                value,
            } => {
                let netdev = self.netdev(at(side)?, link)?;
                netdev.link.settings.insert(*setting, *value);
                Ok(())
            }
            Op::SetIpoibMode {
                at: side,
                link,
                mode,
            } => self.set_ipoib_mode(at(side)?, link, *mode),
            Op::SetUmcast { at: side, link, on } => self.set_umcast(at(side)?, link, *on),
            Op::SetFlag {
                at: side,
                link,
                flag,
                on,
            } => self.set_flag(at(side)?, link, *flag, *on),
            Op::SetAlias {
                at: side,
                link,
                alias,
            } => {
                let alias = Some(alias.clone()).filter(|alias| !alias.is_empty());
                self.netdev(at(side)?, link)?.link.alias = alias;
                Ok(())
            }
            Op::SetAltName {
                at: side,
                link,
                name,
                present,
            } => self.set_alt_name(at(side)?, link, name, *present),
            Op::SetSysctl {
                at: side,
                link,
                key,
                value,
            } => self.set_sysctl(at(side)?, link, key, *value),
            Op::AddAddress {
                at: side,
                link,
                address,
            } => self.add_address(at(side)?, link, address),
            Op::RemoveAddress {
                at: side,
                link,
                address,
            } => self.remove_address(at(side)?, link, address),
            Op::AddRoute {
                at: side,
                link,
                route,
            } => self.add_route(at(side)?, link, route),
            Op::RemoveRoute {
                at: side,
                link,
                route,
            } => self.remove_route(at(side)?, link, route),
            Op::AddRule { at: side, rule } => self.add_rule(at(side)?, rule),
            Op::RemoveRule { at: side, rule } => self.remove_rule(at(side)?, rule),
            Op::Announce {
                at: side,
                link,
                address,
            } => self.announce(at(side)?, link, *address),
            Op::AddPnet { at: side, entry } => self.add_pnet(at(side)?, entry),
            Op::RemovePnet { at: side, id } => self.remove_pnet(at(side)?, id),
            Op::AddUeid { ueid } => self.add_ueid(ueid),
            Op::RemoveUeid { ueid } => self.remove_ueid(ueid),
            Op::SetMaxLinks { links } => self.set_max_links(at(&NetnsSide::Pod)?, *links),
            Op::SetTcp2Smc { on } => self.set_tcp2smc(at(&NetnsSide::Pod)?, *on),
        }
    }
}
