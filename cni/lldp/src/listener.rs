// SPDX-License-Identifier: Apache-2.0
//! Sockets that receive LLDP frames, one for each netdev. They send nothing.
//!
//! Each socket is bound to its netdev for two reasons. First, an inactive port of a bond delivers frames only to bound
//! sockets (`bond_should_deliver_exact_match()`, `drivers/net/bonding/bond_main.c`). Second, frames of other netdevs,
//! such as a pod's, cannot fill the socket's buffer.

use crate::{
    Neighbour,
    frame::{ETHERTYPE, GROUPS},
    parse,
};
use nix::{
    errno::Errno,
    libc,
    net::if_::if_nametoindex,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, setsockopt, socket, sockopt},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

/// Maximum length of a frame in bytes. The kernel cuts off a longer frame. The parser rejects a frame that ends within
/// a TLV.
const LONGEST_FRAME: usize = 2048;

/// Size of a socket's buffer in bytes. It has space for a few frames, which suffices because a neighbour usually
/// sends one frame in 30 s.
const BUFFER: usize = 16 * 1024;

/// Maximum number of frames of one netdev that one call reads. Without this limit, many frames could keep the caller
/// busy.
const MOST_FRAMES: usize = 16;

/// Receiver of LLDP frames. Its descriptor becomes readable when a frame arrives, or when the netdev of a socket goes
/// down or leaves the namespace.
#[derive(Debug)]
pub struct Listener {
    epoll: Epoll,
    sockets: BTreeMap<String, OwnedFd>,
}

impl Listener {
    /// Returns a receiver that listens to no netdev.
    ///
    /// # Errors
    /// The kernel refuses another descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            sockets: BTreeMap::new(),
        })
    }

    /// Listens to exactly these netdevs. Returns the netdevs for which this fails, with the reasons. Call this function
    /// again after every change of netdevs: when a netdev is removed or leaves the namespace, its socket receives
    /// nothing any more, even if the netdev returns. A netdev that goes down keeps its socket.
    pub fn follow(&mut self, netdevs: &BTreeSet<&str>) -> Vec<(String, io::Error)> {
        self.sockets
            .retain(|name, socket| netdevs.contains(name.as_str()) && is_bound(socket, name));
        let mut failed = vec![];
        for name in netdevs {
            if self.sockets.contains_key(*name) {
                continue;
            }
            match self.open(name) {
                Ok(socket) => drop(self.sockets.insert((*name).to_owned(), socket)),
                Err(error) => failed.push(((*name).to_owned(), error)),
            }
        }
        failed
    }

    fn open(&self, netdev: &str) -> io::Result<OwnedFd> {
        let socket = bound(if_nametoindex(netdev)?)?;
        let data = socket.as_raw_fd() as u64;
        self.epoll
            .add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, data))?;
        Ok(socket)
    }

    /// Reads pending frames, and discards malformed frames. Returns pairs of a netdev and a neighbour
    /// whose frame the netdev received.
    pub fn receive(&mut self) -> Vec<(String, Neighbour)> {
        let mut events = [EpollEvent::empty(); 64];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO);
        let events = &events[..count.unwrap_or(0)];
        let is_ready = |socket: &OwnedFd| {
            let data = socket.as_raw_fd() as u64;
            events.iter().any(|event| event.data() == data)
        };
        let ready = self.sockets.iter().filter(|(_, socket)| is_ready(socket));
        ready
            .flat_map(|(name, socket)| frames(socket).into_iter().map(|it| (name.clone(), it)))
            .collect()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.0.as_raw_fd()
    }
}

/// Returns the neighbours in the socket's pending frames, and reads at most [`MOST_FRAMES`] of them.
fn frames(socket: &OwnedFd) -> Vec<Neighbour> {
    let mut neighbours = vec![];
    let mut frame = [0; LONGEST_FRAME];
    for _ in 0..MOST_FRAMES {
        match recv(socket.as_raw_fd(), &mut frame, MsgFlags::empty()) {
            Ok(length) => neighbours.extend(parse(&frame[..length])),
            // no frame is pending, or the netdev went down
            Err(_) => break,
        }
    }
    neighbours
}

/// Returns true if the socket receives from the netdev that has this name at present. The kernel unbinds a socket when
/// its netdev is removed or leaves the namespace (`packet_notifier()`, `net/packet/af_packet.c`).
fn is_bound(socket: &OwnedFd, netdev: &str) -> bool {
    let mut bound = address_of(-1);
    let mut length = size_of_val(&bound) as libc::socklen_t;
    // SAFETY: both pointers are to memory that lives until the call returns; `length` is the size of the first one.
    let outcome =
        unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut bound).cast(), &raw mut length) };
    let now = if_nametoindex(netdev).map(u32::cast_signed);
    outcome == 0 && now == Ok(bound.sll_ifindex)
}

/// Returns the address of a socket that receives LLDP from the netdev `index`.
fn address_of(index: i32) -> libc::sockaddr_ll {
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ETHERTYPE.to_be(),
        sll_ifindex: index,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    }
}

/// Opens a socket that receives only LLDP frames of the netdev `index`.
fn bound(index: u32) -> io::Result<OwnedFd> {
    // without a protocol, the socket receives nothing until it is bound to the netdev
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    setsockopt(&socket, sockopt::RcvBuf, &BUFFER)?;
    let index = index.cast_signed();
    for group in GROUPS {
        let mut address = [0; 8];
        address[..group.len()].copy_from_slice(&group);
        let member = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: group.len() as u16,
            mr_address: address,
        };
        // SAFETY: the pointer is to memory of the stated size that lives until the call returns; the descriptor is
        // open.
        let outcome = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const member).cast(),
                size_of_val(&member) as libc::socklen_t,
            )
        };
        Errno::result(outcome)?;
    }
    let netdev = address_of(index);
    // SAFETY: the pointer is to memory of the stated size that lives until the call returns; the descriptor is open.
    let outcome = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const netdev).cast(),
            size_of_val(&netdev) as libc::socklen_t,
        )
    };
    Errno::result(outcome)?;
    Ok(socket)
}
