// SPDX-License-Identifier: Apache-2.0
//! Events of the kernel: netdevs of this namespace and of pods' namespaces, RDMA devices, hardware, and health
//! reporters.
//!
//! The monitor keeps no descriptor of a pod's namespace. A socket in the pod's namespace would keep the namespace alive
//! after the pod's end, and then the pod's devices would not return to the host. Instead, the monitor assigns a number
//! to the pod's namespace in this namespace (`RTM_NEWNSID`). A number does not keep a namespace alive. The number
//! identifies the pod's events on a socket of this namespace (`NETLINK_LISTEN_ALL_NSID`). In requests it selects the
//! pod's netdevs (`IFLA_TARGET_NETNSID`), so no thread needs to enter the namespace.
//!
//! | capability | for |
//! |---|---|
//! | `CAP_NET_BROADCAST` | events of pods' namespaces (`netlink_setsockopt()`, `net/netlink/af_netlink.c`) |
//! | `CAP_NET_ADMIN` | a number for a namespace, and requests for the netdevs of a namespace by its number (`net/core/rtnetlink.c`) |
//!
//! Without these capabilities the monitor still receives all other events ([`Monitor::losses`], [`WatchError`]).

mod feed;
pub(super) mod nsid;
mod uevent;

pub use nsid::Nsid;
pub use uevent::Uevent;

use super::{devlink, link_messages, links};
use crate::{
    Link, NetnsId,
    netlink::{NetlinkError, Socket, messages},
};
use feed::{Feed, Received};
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_KOBJECT_UEVENT, NETLINK_ROUTE};
use nix::{
    libc::{
        self, RTM_DELADDR, RTM_DELLINK, RTM_DELNSID, RTM_NEWADDR, RTM_NEWLINK, RTNLGRP_IPV4_IFADDR,
        RTNLGRP_IPV6_IFADDR, RTNLGRP_LINK, RTNLGRP_NSID,
    },
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};
use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    path::{Path, PathBuf},
};

/// Multicast group of the kernel's uevents. Udev's events have group 2.
const UEVENTS: u32 = 1;

/// `ifa_scope` in `struct ifaddrmsg`, and its value for addresses of the whole network (`RT_SCOPE_UNIVERSE`).
const IFA_SCOPE: usize = 3;
const UNIVERSE: u8 = 0;

/// Maximum size in bytes of a dump of a watched namespace's netdevs, enough for about 3500 netdevs. A pod chooses the
/// number of its netdevs and of their alternative names.
const LARGEST_DUMP: usize = 4 << 20;

/// A change on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A netdev appeared or changed.
    Link {
        /// Namespace of the netdev. `None`: this program's namespace.
        namespace: Option<Nsid>,
        /// The netdev, without alternative names, addresses and routes.
        link: Box<Link>,
    },
    /// A netdev disappeared from a namespace.
    LinkGone {
        /// Former namespace of the netdev. `None`: this program's namespace.
        namespace: Option<Nsid>,
        /// The netdev in its last known state.
        link: Box<Link>,
    },
    /// An IP address of global scope appeared on a netdev of this namespace, disappeared, or changed.
    Address,
    /// A watched namespace reported a netdev by a message that is longer than this program reads. The caller must
    /// observe the namespace again.
    Unread(Nsid),
    /// A watched namespace has ended. The kernel can give its number to another namespace.
    NamespaceGone(Nsid),
    /// A device appeared, disappeared, or changed.
    Device(Uevent),
    /// A health reporter or another object of devlink changed.
    Devlink,
    /// Events were lost, for example because this program read them too slowly. The caller must observe everything
    /// again.
    Lost,
}

/// Formats the event briefly for a log.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |namespace: &Option<Nsid>| match namespace {
            None => String::new(),
            Some(nsid) => format!(" in namespace {nsid}"),
        };
        match self {
            Self::Link { namespace, link } => {
                let place = place(namespace);
                let up = if link.up { "up" } else { "down" };
                let no = if link.carrier { "" } else { "no " };
                write!(f, "netdev {}{place}: {up}, {no}carrier", link.name)
            }
            Self::LinkGone { namespace, link } => {
                write!(f, "netdev {}{}: gone", link.name, place(namespace))
            }
            Self::Address => f.write_str("an IP address"),
            Self::Unread(nsid) => write!(f, "a netdev with a long message in namespace {nsid}"),
            Self::NamespaceGone(nsid) => write!(f, "namespace {nsid}: gone"),
            Self::Device(event) => write!(f, "{} of {}", event.action, event.path),
            Self::Devlink => f.write_str("an object of devlink"),
            Self::Lost => f.write_str("events that were lost"),
        }
    }
}

/// Reason why a namespace cannot be watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The namespace cannot be opened. `NotFound`: the namespace has ended.
    #[error("cannot open {path:?}: {source}")]
    Open {
        /// Path of the namespace.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The path leads to a namespace that does not have the expected identity.
    #[error("{0:?} is another network namespace now")]
    Other(PathBuf),
    /// The kernel gave the namespace no number.
    #[error(
        "no nsid for the network namespace at {path:?}: {source} (assigning an nsid needs CAP_NET_ADMIN)"
    )]
    Number {
        /// Path of the namespace.
        path: PathBuf,
        /// The kernel's error.
        source: NetlinkError,
    },
}

/// Receives the events of a node.
#[derive(Debug)]
pub struct Monitor {
    sysfs: PathBuf,
    /// Epoll instance that is readable when one of the sockets is readable.
    ready: Epoll,
    routes: Feed,
    uevents: Option<Feed>,
    /// Socket for changes of devlink's objects. `None`: the kernel has no devlink, or the socket could not be opened.
    devlink: Option<Feed>,
    requests: Socket,
    watched: BTreeMap<Nsid, NetnsId>,
    losses: Vec<String>,
    more: bool,
}

impl AsFd for Monitor {
    /// Returns a descriptor that is readable when events are pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.0.as_fd()
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.ready.0.as_raw_fd()
    }
}

impl Monitor {
    /// Opens a monitor of the calling thread's namespace. `sysfs` is the path of `/sys`.
    ///
    /// # Errors
    /// The events of this namespace's netdevs cannot be received.
    pub fn open(sysfs: impl Into<PathBuf>) -> io::Result<Self> {
        let mut losses = Vec::new();
        let routes = Feed::open(NETLINK_ROUTE, RTNLGRP_LINK)?;
        if let Err(error) = routes.join(RTNLGRP_NSID) {
            losses.push(loss("ends of namespaces", error));
        }
        let mut addresses = [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR].into_iter();
        if let Err(error) = addresses.try_for_each(|group| routes.join(group)) {
            losses.push(loss("changes of IP addresses", error));
        }
        if let Err(error) = routes.listen_to_all_namespaces() {
            let why = format!("{error} (reports need CAP_NET_BROADCAST)");
            losses.push(loss("changes of netdevs in pods' namespaces", why));
        }
        let uevents = Feed::open(NETLINK_KOBJECT_UEVENT, UEVENTS)
            .map_err(|error| losses.push(loss("added and removed devices", error)))
            .ok();
        let devlink = devlink::changes().and_then(|group| {
            let feed = group.map(|group| Feed::open(NETLINK_GENERIC, group));
            Ok(feed.transpose()?)
        });
        let devlink = devlink.unwrap_or_else(|error| {
            losses.push(loss("changes of devlink's health reporters", error));
            None
        });
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for feed in std::iter::once(&routes).chain(&uevents).chain(&devlink) {
            ready.add(feed, EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        }
        Ok(Self {
            sysfs: sysfs.into(),
            ready,
            routes,
            uevents,
            devlink,
            requests: Socket::open(NETLINK_ROUTE)?,
            watched: BTreeMap::new(),
            losses,
            more: false,
        })
    }

    /// Returns a sentence for each kind of events that the monitor cannot receive (of pods' namespaces, of addresses, of
    /// devices, of devlink, or the ends of namespaces).
    pub fn losses(&self) -> &[String] {
        &self.losses
    }

    /// Starts to watch the namespace at `path`, if it still has the identity `id`. Does not compare the cookie in `id`,
    /// because only a thread inside the namespace can read the cookie.
    pub fn watch(&mut self, path: &Path, id: NetnsId) -> Result<Nsid, WatchError> {
        let nsid = nsid::of(&mut self.requests, path, id)?;
        self.watched.insert(nsid, id);
        Ok(nsid)
    }

    /// Stops watching a namespace.
    pub fn forget(&mut self, namespace: Nsid) {
        self.watched.remove(&namespace);
    }

    /// Returns the netdevs of a watched namespace for which `keep` returns true, without alternative names, addresses
    /// and routes. `None` stands for this program's namespace. Other netdevs of the namespace need no memory.
    ///
    /// # Errors
    /// The kernel refuses, or a watched namespace has more netdevs or names than this program reads.
    pub fn links(
        &self,
        namespace: Option<Nsid>,
        keep: impl Fn(&Link) -> bool,
    ) -> Result<Vec<Link>, NetlinkError> {
        let (request, limit) = match namespace {
            None => (link_messages::dump(), usize::MAX),
            Some(nsid) => (link_messages::dump_of(nsid.0), LARGEST_DUMP),
        };
        let socket = Socket::open(NETLINK_ROUTE)?;
        socket.dump_and_keep(&request, limit, |body| {
            links::parse_in(body, &self.sysfs, namespace.is_none()).filter(&keep)
        })
    }

    /// Returns true if more events may be pending after the last call of [`events`](Self::events).
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Returns the pending events. Does not wait.
    pub fn events(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        self.more = true;
        let mut at_end = self.routes.receive(|received| match received {
            // a pod chooses the length of its netdevs' messages: such a message concerns only this pod
            Received::TooLong(Some(namespace)) => {
                let is_watched = self.watched.contains_key(&Nsid(namespace));
                events.extend(is_watched.then_some(Event::Unread(Nsid(namespace))));
            }
            Received::TooLong(None) | Received::Lost => events.push(Event::Lost),
            Received::Datagram(namespace, datagram) => {
                let namespace = namespace.map(Nsid);
                events.extend(of_rtnetlink(
                    datagram,
                    namespace,
                    &mut self.watched,
                    &self.sysfs,
                ));
            }
        })?;
        if let Some(devlink) = &mut self.devlink {
            // several messages become one [`Event::Devlink`]
            let mut has_message = false;
            at_end &= devlink.receive(|_| has_message = true)?;
            events.extend(has_message.then_some(Event::Devlink));
        }
        if let Some(uevents) = &mut self.uevents {
            at_end &= uevents.receive(|received| match received {
                Received::TooLong(_) | Received::Lost => events.push(Event::Lost),
                Received::Datagram(_, datagram) => {
                    events.extend(Uevent::parse(datagram).map(Event::Device));
                }
            })?;
        }
        self.more = !at_end;
        Ok(events)
    }
}

fn loss(events: &str, error: impl fmt::Display) -> String {
    format!("{events} are not reported: {error}")
}

/// Returns the events in a datagram from `namespace`. `None` stands for this program's namespace.
fn of_rtnetlink(
    datagram: &[u8],
    namespace: Option<Nsid>,
    watched: &mut BTreeMap<Nsid, NetnsId>,
    sysfs: &Path,
) -> Vec<Event> {
    let mut events = Vec::new();
    for message in messages(datagram) {
        let body = message.payload();
        match message.message_type() {
            RTM_DELNSID if namespace.is_none() => {
                let gone = nsid::parse(body).filter(|nsid| watched.remove(nsid).is_some());
                events.extend(gone.map(Event::NamespaceGone));
            }
            RTM_NEWADDR | RTM_DELADDR if namespace.is_none() => {
                let is_global = body.get(IFA_SCOPE) == Some(&UNIVERSE);
                events.extend(is_global.then_some(Event::Address));
            }
            kind @ (RTM_NEWLINK | RTM_DELLINK) => {
                // a bridge reports its ports by messages of the same type
                if body.first() != Some(&(libc::AF_UNSPEC as u8))
                    || namespace.is_some_and(|nsid| !watched.contains_key(&nsid))
                {
                    continue;
                }
                let link = links::parse_in(body, sysfs, namespace.is_none());
                let Some(link) = link.map(Box::new) else {
                    continue;
                };
                events.push(match kind {
                    RTM_NEWLINK => Event::Link { namespace, link },
                    _ => Event::LinkGone { namespace, link },
                });
            }
            _ => {}
        }
    }
    events
}
