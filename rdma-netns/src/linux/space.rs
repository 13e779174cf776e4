// SPDX-License-Identifier: Apache-2.0
//! A namespace that is worked in, and the sockets that were opened inside it.

use super::{announce, nldev::Nldev, resident::Resident};
use crate::{
    NetnsId,
    netlink::{NetlinkError, Socket},
    netns::{Netns, OpenError, own_cookie},
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

/// A namespace with a way in: a thread that stays inside, and the sockets that it has opened there.
#[derive(Debug)]
pub struct Space {
    netns: Netns,
    route: Mutex<Socket>,
    packet: OnceLock<OwnedFd>,
    groups: Mutex<Option<UdpSocket>>,
    resident: Mutex<Option<Resident>>,
    /// Whether it is the namespace this program runs in: no thread needs to enter it.
    own: bool,
}

impl Space {
    /// The namespace of the calling thread.
    pub(super) fn own() -> io::Result<Self> {
        let route = Mutex::new(Socket::open(NETLINK_ROUTE)?);
        Ok(Self {
            netns: Netns::current()?,
            route,
            packet: OnceLock::new(),
            groups: Mutex::default(),
            resident: Mutex::default(),
            own: true,
        })
    }

    /// The namespace at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let (netns, (resident, route)) = Netns::open_by(path, |netns| {
            let ask = || Ok((own_cookie()?, Socket::open(NETLINK_ROUTE)?));
            let (resident, (cookie, route)) = Resident::enter(netns, ask)?;
            Ok((cookie, (resident, route)))
        })?;
        Ok(Self {
            netns,
            route: Mutex::new(route),
            packet: OnceLock::new(),
            groups: Mutex::default(),
            resident: Mutex::new(Some(resident)),
            own: false,
        })
    }

    /// The namespace itself.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Whether it is the namespace that this program runs in, which its sysfs shows.
    pub(super) fn is_own(&self) -> bool {
        self.own
    }

    pub(super) fn route(&self) -> MutexGuard<'_, Socket> {
        // A socket is in order after a panic, too: it tells answers apart by sequence.
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has `work` done by a thread inside, which stays there for more of it, and waits for it.
    pub(super) fn inside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *resident {
            Some(resident) => resident.run(work),
            none => {
                let (entered, found) = Resident::enter(&self.netns, work)?;
                *none = Some(entered);
                Ok(found)
            }
        }
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
        if self.own {
            PnetTable::open()
        } else {
            let opened = self.netns.run(PnetTable::open);
            opened.map_err(NetlinkError::from).flatten()
        }
    }

    /// RDMA netlink as this namespace sees it.
    pub(super) fn nldev(&self) -> io::Result<Option<Nldev>> {
        if self.own {
            Nldev::open()
        } else {
            self.inside(Nldev::open)
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
