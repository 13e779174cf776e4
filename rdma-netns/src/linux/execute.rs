// SPDX-License-Identifier: Apache-2.0
//! Execution of every [`Op`] by the kernel.

use super::{
    Space, addresses, announce,
    children::{ANY_INDEX, NewChild},
    device_settings, drivers, ipoib, link_messages, links,
    nldev::Nldev,
    routes, rules, smc, sysctls, vfs, xdp,
};
use crate::{
    Child, InterfaceName, LinkChange, LinkSetting, NetnsSide, Op,
    netlink::{NetlinkError, Socket, tolerate},
};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags},
};
use nix::libc;
use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
    path::Path,
};

/// Number of tries to find a free index for a child. Each try is [`INDEX_GAP`] further above the highest index in use
/// than the try before, because new netdevs take the next indexes.
const INDEX_TRIES: u32 = 8;
const INDEX_GAP: u32 = 64;

/// Flags of a request that makes an object, and that fails if the object exists.
const NEW: i32 = libc::NLM_F_CREATE | libc::NLM_F_EXCL;

/// The two namespaces that an operation can name, and sysfs.
#[derive(Clone, Copy)]
pub(super) struct Namespaces<'a> {
    pub(super) host: &'a Space,
    pub(super) pod: Option<&'a Space>,
    /// The host's sysfs.
    pub(super) sysfs: &'a Path,
}

impl<'a> Namespaces<'a> {
    fn at(self, side: NetnsSide) -> io::Result<&'a Space> {
        match side {
            NetnsSide::Host => Ok(self.host),
            NetnsSide::Pod => self.pod.ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "the pod's namespace was not given",
                )
            }),
        }
    }

    fn send(
        self,
        at: NetnsSide,
        message: &RouteNetlinkMessage,
        flags: i32,
    ) -> Result<(), NetlinkError> {
        let mut socket = self.at(at)?.route();
        socket.request(message, flags as u16).map(drop)
    }

    /// Makes a change to `link`. `change` returns the request for the index of `link`.
    fn change(
        self,
        at: NetnsSide,
        link: &InterfaceName,
        flags: i32,
        change: impl FnOnce(u32) -> RouteNetlinkMessage,
    ) -> Result<(), NetlinkError> {
        let mut socket = self.at(at)?.route();
        let index = index_of(&mut socket, link)?;
        socket.request(&change(index), flags as u16).map(drop)
    }

    pub(super) fn execute(self, op: &Op) -> Result<(), NetlinkError> {
        match op {
            Op::MoveRdma { device, from, to } => {
                let target = self.at(*to)?.netns();
                self.rdma(*from, |nldev| nldev.move_device(device, target.as_fd()))
            }
            Op::RenameRdma { at, device, name } => {
                self.rdma(*at, |nldev| nldev.rename_device(device, name))
            }
            Op::DeleteSubDevice { at, device } => {
                self.rdma(*at, |nldev| nldev.delete_sub_device(device))
            }
            Op::MoveLink {
                link,
                from,
                to,
                name,
            } => self.move_link(link, *from, *to, name),
            Op::AddChild {
                at,
                parent,
                child,
                name,
                mtu,
            } => self.add_child(*at, parent, (*child, name, *mtu)),
            Op::Link { at, link, change } => self.change_link(*at, link, change),
            Op::RemoveGroup { group } => {
                let removed = self.send(NetnsSide::Pod, &link_messages::remove_group(*group), 0);
                tolerate(libc::ENODEV, removed)
            }
            Op::SetDeviceSetting { link, key, value } => {
                let mut socket = self.host.route();
                let index = index_of(&mut socket, link)?;
                let (netdev, setting) = ((&**link, index), (&**key, &**value));
                device_settings::write(self.sysfs, &mut socket, netdev, setting)
            }
            Op::SetVf {
                pf,
                number,
                setting,
            } => self.change(NetnsSide::Host, pf, 0, |index| {
                vfs::set(index, *number, setting)
            }),
            Op::RebindDriver { device, driver } => Ok(drivers::rebind(self.sysfs, device, driver)?),
            Op::BindDriver { device, driver } => Ok(drivers::bind(self.sysfs, device, driver)?),
            Op::AddRule { at, rule } => {
                tolerate(libc::EEXIST, self.send(*at, &rules::add(rule), NEW))
            }
            Op::RemoveRule { at, rule } => {
                tolerate(libc::ENOENT, self.send(*at, &rules::remove(rule), 0))
            }
            Op::AddPnet { at, entry } => smc::add_pnet(self.at(*at)?, *at, entry),
            Op::RemovePnet { at, id } => smc::remove_pnet(self.at(*at)?, id),
            Op::AddUeid { ueid } => smc::add_ueid(ueid),
            Op::RemoveUeid { ueid } => smc::remove_ueid(ueid),
            Op::SetMaxLinks { links } => smc::set(self.at(NetnsSide::Pod)?, smc::MAX_LINKS, *links),
            Op::SetTcp2Smc { on } => {
                smc::set(self.at(NetnsSide::Pod)?, smc::TCP2SMC, u8::from(*on))
            }
        }
    }

    fn change_link(
        self,
        at: NetnsSide,
        link: &InterfaceName,
        change: &LinkChange,
    ) -> Result<(), NetlinkError> {
        let request = |flags, message: &dyn Fn(u32) -> RouteNetlinkMessage| {
            self.change(at, link, flags, message)
        };
        let set = |attribute: LinkAttribute| {
            self.change(at, link, 0, |index| {
                link_messages::set(index, vec![attribute])
            })
        };
        match change {
            LinkChange::Remove => tolerate(libc::ENODEV, request(0, &link_messages::remove)),
            LinkChange::Rename(name) => set(LinkAttribute::IfName(name.to_string())),
            LinkChange::Up(up) => request(0, &|index| {
                link_messages::set_flags(index, LinkFlags::Up, *up)
            }),
            LinkChange::Mtu(mtu) => set(LinkAttribute::Mtu(*mtu)),
            LinkChange::Mac(mac) => set(LinkAttribute::Address(mac.0.clone())),
            LinkChange::Broadcast(mac) => set(LinkAttribute::Broadcast(mac.0.clone())),
            LinkChange::TxQueueLen(packets) => set(LinkAttribute::TxQueueLen(*packets)),
            LinkChange::Setting(LinkSetting::Xdp, program) => {
                let mut socket = self.at(at)?.route();
                let index = index_of(&mut socket, link)?;
                xdp::detach(&mut socket, index, *program)
            }
            LinkChange::Setting(setting, value) => set(link_messages::setting(*setting, *value)),
            LinkChange::IpoibMode(mode) => {
                let space = self.at(at)?;
                let index = index_of(&mut space.route(), link)?;
                let is_host = at == NetnsSide::Host;
                let changed =
                    ipoib::change_mode(space, is_host, self.sysfs, (&**link, index), *mode);
                // EBUSY: the kernel has set the mode, but another process has the rtnl lock afterwards
                // (`ipoib_set_mode()`)
                tolerate(libc::EBUSY, changed)
            }
            LinkChange::Umcast(on) => request(0, &|index| ipoib::set_umcast(index, *on)),
            LinkChange::Flag(flag, on) => {
                request(0, &|index| link_messages::set_flag(index, *flag, *on))
            }
            LinkChange::Alias(alias) => set(link_messages::alias(alias)),
            LinkChange::AltName { name, present } => {
                let names = |index| link_messages::alt_name(index, name);
                match present {
                    true => request(NEW, &|it| RouteNetlinkMessage::NewLinkProp(names(it))),
                    false => request(0, &|it| RouteNetlinkMessage::DelLinkProp(names(it))),
                }
            }
            LinkChange::Sysctl { key, value } => {
                Ok(self.at(at)?.inside(|| sysctls::write(link, key, *value))?)
            }
            LinkChange::AddAddress(address) => {
                let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
                request(flags, &|index| addresses::add(index, address))
            }
            LinkChange::RemoveAddress(address) => {
                request(0, &|index| addresses::remove(index, address))
            }
            LinkChange::AddRoute(route) => {
                let flags = libc::NLM_F_CREATE | libc::NLM_F_APPEND;
                let added = request(flags, &|index| routes::add(index, route));
                tolerate(libc::EEXIST, added)
            }
            LinkChange::RemoveRoute(route) => {
                let removed = request(0, &|index| routes::remove(index, route));
                tolerate(libc::ESRCH, removed)
            }
            LinkChange::Announce(address) => self.announce(at, link, *address),
        }
    }

    /// Sends the request for the child on the host's socket, because the parent is on the host. An attribute of the
    /// request names the child's namespace. With `NLM_F_EXCL` the kernel does not change an existing netdev with the
    /// child's name.
    ///
    /// If a request has no index, Linux before 6.15 searches for an existing netdev in the socket's namespace instead
    /// of the child's (`rtnl_newlink()`, `net/core/rtnetlink.c`), and returns EEXIST if a netdev of the host has the
    /// child's name. `add_child` then repeats the request with an index.
    fn add_child(
        self,
        at: NetnsSide,
        parent: &InterfaceName,
        (child, name, mtu): (Child, &InterfaceName, u32),
    ) -> Result<(), NetlinkError> {
        let space = self.at(at)?;
        let mut host = self.host.route();
        let new = NewChild {
            lower: index_of(&mut host, parent)?,
            child,
            target: space.netns().as_fd(),
            name,
            mtu,
        };
        let Err(refusal) = host.request(&new.request(ANY_INDEX), NEW as u16) else {
            return Ok(());
        };
        let mut inside = space.route();
        let is_free = matches!(
            index_of(&mut inside, name),
            Err(error) if error.errno() == Some(libc::ENODEV)
        );
        if refusal.errno() != Some(libc::EEXIST) || !is_free {
            return Err(refusal);
        }
        let mut refusal = refusal;
        for attempt in 0..INDEX_TRIES {
            let highest = highest_index(&mut host)?.max(highest_index(&mut inside)?);
            // the next indexes can belong to netdevs that appear meanwhile
            let index = highest + 1 + attempt * INDEX_GAP;
            match host.request(&new.request(index), NEW as u16) {
                Ok(_) => return Ok(()),
                // another netdev on the host or in the pod has the index or the name (`register_netdevice()`)
                Err(taken) if matches!(taken.errno(), Some(libc::EEXIST | libc::EBUSY)) => {
                    log::debug!("{name} cannot have interface index {index}: {taken}");
                    refusal = taken;
                }
                Err(error) => return Err(error),
            }
        }
        Err(refusal)
    }

    /// Announces `address` with the netdev's present hardware address, because the driver may have chosen this address.
    /// Announces nothing if the netdev is down, does no neighbour discovery or is not Ethernet.
    fn announce(
        self,
        at: NetnsSide,
        link: &InterfaceName,
        address: IpAddr,
    ) -> Result<(), NetlinkError> {
        let space = self.at(at)?;
        let mut socket = space.route();
        let index = index_of(&mut socket, link)?;
        let answers = socket.request(&link_messages::by_index(index), 0)?;
        let Some(mac) = answers.bodies().find_map(links::neighbours_find) else {
            return Ok(());
        };
        drop(socket);
        match address {
            IpAddr::V4(address) => announce::announce(space.packet()?, address, mac, index)?,
            IpAddr::V6(address) => space.inside(|| announce::advertise(address, mac, index))?,
        }
        Ok(())
    }

    /// Opens the RDMA netlink socket and makes the change in a thread inside the namespace `at`.
    fn rdma(
        self,
        at: NetnsSide,
        change: impl FnOnce(&mut Nldev) -> Result<(), NetlinkError> + Send,
    ) -> Result<(), NetlinkError> {
        self.at(at)?.netns().run(|| match Nldev::open()? {
            Some(mut nldev) => change(&mut nldev),
            None => Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT).into()),
        })?
    }

    /// Moves a netdev, after a check that the new name is free. Without this check, `do_setlink()`
    /// (`net/core/rtnetlink.c`) could move the netdev under its old name, and then fail to rename it.
    fn move_link(
        self,
        link: &InterfaceName,
        from: NetnsSide,
        to: NetnsSide,
        name: &InterfaceName,
    ) -> Result<(), NetlinkError> {
        let target = self.at(to)?;
        match index_of(&mut target.route(), name) {
            Ok(_) if from != to => {
                return Err(NetlinkError {
                    source: io::Error::from_raw_os_error(libc::EEXIST),
                    message: Some(format!("the new namespace has a netdev called {name}")),
                });
            }
            Err(error) if error.errno() != Some(libc::ENODEV) => return Err(error),
            _ => {}
        }
        let moved = vec![
            LinkAttribute::NetNsFd(target.netns().as_fd().as_raw_fd()),
            LinkAttribute::IfName(name.to_string()),
        ];
        self.change(from, link, 0, |index| link_messages::set(index, moved))
    }
}

/// Returns the highest index of a netdev. Accepts the result of an interrupted dump, because the kernel may interrupt
/// every dump while containers keep starting. Only a netdev that appears during the dump can have a higher index.
fn highest_index(socket: &mut Socket) -> Result<u32, NetlinkError> {
    let answers = socket.dump_once(&link_messages::dump())?;
    let indices = answers.bodies().filter_map(link_messages::index);
    Ok(indices.max().unwrap_or_default())
}

fn index_of(socket: &mut Socket, name: &InterfaceName) -> Result<u32, NetlinkError> {
    if let Some(index) = name.index() {
        return Ok(index);
    }
    let answers = socket.request(&link_messages::find(name), 0)?;
    let index = answers.bodies().find_map(link_messages::index);
    Ok(index.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?)
}
