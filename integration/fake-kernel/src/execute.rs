// SPDX-License-Identifier: Apache-2.0
//! Dispatches each [`Op`] to the rule for it.

use crate::world::{HOST, Refusal, World};
use nix::errno::Errno;
use rdma_netns::{InterfaceName, LinkChange, NetnsId, NetnsSide, Op};

impl World {
    /// Executes the change `op`, in the pod's namespace `pod` if `op` names the pod. Tests also use it to make changes
    /// as administrators and pods would.
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
            Op::Link {
                at: side,
                link,
                change,
            } => self.change_link(at(side)?, link, change),
            Op::RemoveGroup { group } => self.remove_group(at(&NetnsSide::Pod)?, *group),
            Op::SetVf {
                pf,
                number,
                setting,
            } => self.set_vf(pf, *number, setting),
            Op::RebindDriver { device, driver } => self.rebind_driver(device, driver),
            Op::BindDriver { device, driver } => self.bind_driver(device, driver),
            Op::SetDeviceSetting { link, key, value } => {
                self.set_device_setting(HOST, link, (key, value))
            }
            Op::AddRule { at: side, rule } => self.add_rule(at(side)?, rule),
            Op::RemoveRule { at: side, rule } => self.remove_rule(at(side)?, rule),
            Op::AddPnet { at: side, entry } => self.add_pnet(at(side)?, entry),
            Op::RemovePnet { at: side, id } => self.remove_pnet(at(side)?, id),
            Op::AddUeid { ueid } => self.add_ueid(ueid),
            Op::RemoveUeid { ueid } => self.remove_ueid(ueid),
            Op::SetMaxLinks { links } => self.set_max_links(at(&NetnsSide::Pod)?, *links),
            Op::SetTcp2Smc { on } => self.set_tcp2smc(at(&NetnsSide::Pod)?, *on),
        }
    }
    fn change_link(
        &mut self,
        at: NetnsId,
        link: &InterfaceName,
        change: &LinkChange,
    ) -> Result<(), Refusal> {
        match change {
            LinkChange::Remove => self.remove_link(at, link),
            LinkChange::Rename(name) => self.rename_link(at, link, name),
            LinkChange::Up(up) => self.set_up(at, link, *up),
            LinkChange::Mtu(mtu) => self.set_mtu(at, link, *mtu),
            LinkChange::Mac(mac) => self.set_mac(at, link, mac),
            LinkChange::TxQueueLen(packets) => {
                self.netdev(at, link)?.link.tx_queue_len = *packets;
                Ok(())
            }
            LinkChange::Broadcast(mac) => {
                self.netdev(at, link)?.link.broadcast = Some(mac.clone());
                Ok(())
            }
            LinkChange::Setting(setting, value) => {
                let netdev = self.netdev(at, link)?;
                netdev.link.settings.insert(*setting, *value);
                Ok(())
            }
            LinkChange::IpoibMode(mode) => self.set_ipoib_mode(at, link, *mode),
            LinkChange::Umcast(on) => self.set_umcast(at, link, *on),
            LinkChange::Flag(flag, on) => self.set_flag(at, link, *flag, *on),
            LinkChange::Alias(alias) => {
                let alias = Some(alias.clone()).filter(|alias| !alias.is_empty());
                self.netdev(at, link)?.link.alias = alias;
                Ok(())
            }
            LinkChange::AltName { name, present } => self.set_alt_name(at, link, name, *present),
            LinkChange::Sysctl { key, value } => self.set_sysctl(at, link, key, *value),
            LinkChange::AddAddress(address) => self.add_address(at, link, address),
            LinkChange::RemoveAddress(address) => self.remove_address(at, link, address),
            LinkChange::AddRoute(route) => self.add_route(at, link, route),
            LinkChange::RemoveRoute(route) => self.remove_route(at, link, route),
            LinkChange::Announce(address) => self.announce(at, link, *address),
        }
    }
}
