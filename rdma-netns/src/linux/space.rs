// SPDX-License-Identifier: Apache-2.0
//! A network namespace, and the sockets that were opened inside it.

use super::{nldev::Nldev, packet_socket};
use crate::{
    NetnsId, OpenPodError,
    netlink::{NetlinkError, Socket},
    netns::{Netns, cookie_of},
    smc::PnetTable,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::libc;
use std::{
    io,
    net::{Ipv6Addr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

/// A namespace, and the sockets that were opened inside it.
#[derive(Debug)]
pub struct Space {
    netns: Netns,
    route: Mutex<Socket>,
    packet: OnceLock<OwnedFd>,
    groups: Mutex<Option<UdpSocket>>,
    /// True if this program's threads are in the namespace.
    own: bool,
}

impl Space {
    /// Opens the namespace of the calling thread.
    pub(super) fn own() -> io::Result<Self> {
        let route = Socket::open(NETLINK_ROUTE)?;
        Ok(Self::of(Netns::by_socket(&route)?, route, true))
    }

    fn of(netns: Netns, route: Socket, own: bool) -> Self {
        Self {
            netns,
            route: Mutex::new(route),
            packet: OnceLock::new(),
            groups: Mutex::default(),
            own,
        }
    }

    pub(super) fn open(path: &Path) -> Result<Self, OpenPodError> {
        let (netns, route) = Netns::open_by(path, |netns| {
            let ask = || {
                let route = Socket::open(NETLINK_ROUTE)?;
                Ok((cookie_of(&route)?, route))
            };
            netns.visit(ask).flatten()
        })?;
        Ok(Self::of(netns, route, false))
    }

    /// Returns the namespace itself.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Returns true for the namespace of this program. The program's sysfs shows this namespace.
    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    pub(super) fn route(&self) -> MutexGuard<'_, Socket> {
        // a socket is usable after a panic too, because it assigns answers to requests by sequence number
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` inside the namespace. The calling thread can be in any namespace.
    pub(super) fn inside<T, E: From<io::Error>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.netns.visit(work)?
    }

    /// Returns a packet socket. The socket stays open after its first use, because closing it takes some 15 ms: the
    /// kernel waits until no CPU can receive through the socket (`packet_release()`, `net/packet/af_packet.c`).
    pub(super) fn packet(&self) -> io::Result<BorrowedFd<'_>> {
        let socket = match self.packet.get() {
            Some(socket) => socket,
            None => {
                let socket = self.inside(packet_socket::open)?;
                self.packet.get_or_init(|| socket)
            }
        };
        Ok(socket.as_fd())
    }

    /// Joins the multicast group `group` on the netdev `index`. The membership lasts until [`Space::leave`].
    pub(super) fn join(&self, group: &Ipv6Addr, index: u32) -> io::Result<()> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = match &mut *groups {
            Some(socket) => socket,
            none => {
                let open = || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0));
                none.insert(self.inside(open)?)
            }
        };
        match socket.join_multicast_v6(group, index) {
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(()), // a member
            joined => joined,
        }
    }

    /// Leaves all multicast groups. Call this before a netdev leaves the namespace: the kernel finds a membership's
    /// netdev by index. After the netdev has returned with its index, this call would end the membership that the
    /// kernel made for the netdev's own address (`__ipv6_sock_mc_close()`, `net/ipv6/mcast.c`).
    pub(super) fn leave(&self) {
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn pnet(&self) -> Result<PnetTable, NetlinkError> {
        match self.own {
            true => PnetTable::open(),
            false => self.inside(PnetTable::open),
        }
    }

    pub(super) fn nldev(&self) -> io::Result<Option<Nldev>> {
        match self.own {
            true => Nldev::open(),
            false => self.inside(Nldev::open),
        }
    }
}

impl crate::Pod for Space {
    fn path(&self) -> &Path {
        self.netns.path()
    }

    fn id(&self) -> NetnsId {
        self.netns.id()
    }
}
