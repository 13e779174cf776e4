// SPDX-License-Identifier: Apache-2.0
//! Sockets that the standard library cannot open. Open sockets have the standard library's types.

use nix::{
    errno::Errno,
    libc,
    sys::socket::{Backlog, SockaddrStorage, bind, connect as connect_to, listen as listen_on},
    sys::socket::{setsockopt, sockopt},
};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

/// `AF_SMC` and its two protocols (`net/smc/smc.h`).
const AF_SMC: i32 = 43;
const SMCPROTO_SMC: i32 = 0;
const SMCPROTO_SMC6: i32 = 1;
/// `IPPROTO_SMC` (`include/uapi/linux/in.h`)
const IPPROTO_SMC: i32 = 256;

/// Kind of sockets.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Smc,
    IpProto,
    Tcp,
}

fn socket(kind: Kind, address: SocketAddr) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let (family, protocol) = match kind {
        Kind::Smc if address.is_ipv4() => (AF_SMC, SMCPROTO_SMC),
        Kind::Smc => (AF_SMC, SMCPROTO_SMC6),
        Kind::IpProto => (family, IPPROTO_SMC),
        Kind::Tcp => (family, libc::IPPROTO_TCP),
    };
    let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes three numbers, and returns a descriptor or -1.
    let descriptor = Errno::result(unsafe { libc::socket(family, flags, protocol) })?;
    // SAFETY: the descriptor is new, and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

pub(super) fn listen(kind: Kind, address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(kind, address)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    listen_on(&socket, Backlog::new(64)?)?;
    Ok(socket.into())
}

pub(super) fn connect(kind: Kind, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket(kind, address)?;
    connect_to(socket.as_raw_fd(), &SockaddrStorage::from(address))?;
    Ok(socket.into())
}
