// SPDX-License-Identifier: Apache-2.0
//! A namespace that is worked in, and the sockets that were opened inside it.

use super::{announce, nldev::Nldev};
use crate::{
    NetnsId,
    netlink::{NetlinkError, Socket},
    netns::{Netns, OpenError, cookie_of},
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

/// A namespace, and the sockets that were opened there.
#[derive(Debug)]
pub struct Space {
    netns: Netns,
    route: Mutex<Socket>,
    packet: OnceLock<OwnedFd>,
    groups: Mutex<Option<UdpSocket>>,
    /// True for the namespace of this program and its threads.
    own: bool,
}

impl Space {
    /// The namespace of the calling thread.
    pub(super) fn own() -> io::Result<Self> {
        let route = Socket::open(NETLINK_ROUTE)?;
        Ok(Self {
            netns: Netns::by_socket(&route)?,
            route: Mutex::new(route),
            packet: OnceLock::new(),
            groups: Mutex::default(),
            own: true,
        })
    }

    /// The namespace at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let (netns, route) = Netns::open_by(path, |netns| {
            let ask = || {
                let route = Socket::open(NETLINK_ROUTE)?;
                Ok((cookie_of(&route)?, route))
            };
            netns.visit(ask).flatten()
        })?;
        Ok(Self {
            netns,
            route: Mutex::new(route),
            packet: OnceLock::new(),
            groups: Mutex::default(),
            own: false,
        })
    }

    /// The namespace itself.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Returns true for the namespace of this program, which its sysfs shows.
    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    pub(super) fn route(&self) -> MutexGuard<'_, Socket> {
        // A socket is in order after a panic, too: it tells answers apart by sequence.
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` inside, from a thread in any namespace.
    pub(super) fn inside<T, E: From<io::Error>>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.netns.visit(work)?
    }

    /// A packet socket, kept from its first use: to close one takes some 15 ms, as the kernel
    /// waits until no CPU can be receiving by it (`packet_release()`, `net/packet/af_packet.c`).
    pub(super) fn packet(&self) -> io::Result<BorrowedFd<'_>> {
        let socket = match self.packet.get() {
            Some(socket) => socket,
            None => {
                let socket = self.inside(announce::open)?;
                self.packet.get_or_init(|| socket)
            }
        };
        Ok(socket.as_fd())
    }

    /// Becomes a member of `group` by the netdev of `index`, until [`Space::leave`].
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
            Err(error) if error.raw_os_error() == Some(libc::EADDRINUSE) => Ok(()), // a member already
            joined => joined,
        }
    }

    /// Leaves all groups. Not later than the netdevs leave the namespace: the kernel knows a member by
    /// the index alone. For one that comes again with the same index it would be a member in name only,
    /// and leave a group that the netdev is in for its own address (`__ipv6_sock_mc_close()`,
    /// `net/ipv6/mcast.c`).
    pub(super) fn leave(&self) {
        *self.groups.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Its pnet table.
    pub(super) fn pnet(&self) -> Result<PnetTable, NetlinkError> {
        match self.own {
            true => PnetTable::open(),
            false => self.inside(PnetTable::open),
        }
    }

    /// RDMA netlink as this namespace sees it.
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
