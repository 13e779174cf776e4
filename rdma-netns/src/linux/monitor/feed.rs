// SPDX-License-Identifier: Apache-2.0
//! A netlink socket that only receives.

use netlink_sys::SocketAddr;
use nix::libc;
use std::{
    io, mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

/// Size of the receive buffer in bytes, large enough for a burst: 256 virtual functions appear at once while pods
/// start.
const BURST: u32 = 1 << 20;

/// Size of the buffer for one datagram in bytes. A netdev's message is smaller than 4 KiB, unless a program gave the
/// netdev many alternative names. A uevent has at most a little more than 2 KiB (`UEVENT_BUFFER_SIZE`).
const LARGEST: usize = 32 << 10;

/// Maximum number of datagrams that one call reads. Without a limit, a flood of events would delay other work.
const BATCH: usize = 4096;

/// A netlink socket that is a member of one or more multicast groups.
#[derive(Debug)]
pub(super) struct Feed {
    socket: netlink_sys::Socket,
    buffer: Vec<u8>,
    /// Length of the last datagram.
    length: usize,
}

/// Result of receiving.
pub(super) enum Received<'a> {
    /// A datagram, and the number of the namespace from which it comes. `None`: the socket's own namespace.
    Datagram(Option<i32>, &'a [u8]),
    /// A datagram that was longer than the buffer, and came from the namespace with this number. `None`: the socket's
    /// own namespace.
    TooLong(Option<i32>),
    /// The kernel dropped some datagrams.
    Lost,
}

impl AsFd for Feed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Feed {
    /// Opens a socket in the calling thread's namespace.
    pub(super) fn open(protocol: isize, group: u32) -> io::Result<Self> {
        let mut socket = netlink_sys::Socket::new(protocol)?;
        socket.set_non_blocking(true)?;
        if let Err(error) = socket.set_rx_buf_sz(BURST) {
            log::debug!("cannot enlarge the receive buffer of a netlink socket: {error}");
        }
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.add_membership(group)?;
        Ok(Self {
            socket,
            buffer: vec![0; LARGEST],
            length: 0,
        })
    }

    pub(super) fn join(&self, group: u32) -> io::Result<()> {
        self.socket.add_membership(group)
    }

    /// Makes the socket receive events of all namespaces that have a number in this namespace.
    ///
    /// # Errors
    /// EPERM: `CAP_NET_BROADCAST` is missing.
    pub(super) fn listen_to_all_namespaces(&self) -> io::Result<()> {
        self.socket.set_listen_all_namespaces(true)
    }

    /// Receives at most [`BATCH`] datagrams, and passes each datagram and each loss to `take`. Does not wait. Returns
    /// true if no further datagram is pending.
    pub(super) fn receive(&mut self, mut take: impl FnMut(Received<'_>)) -> io::Result<bool> {
        for _ in 0..BATCH {
            match self.next() {
                Ok(message) if message.sender != 0 => {} // a message of another program
                Ok(message) if message.truncated => take(Received::TooLong(message.namespace)),
                Ok(message) => {
                    let datagram = &self.buffer[..self.length];
                    take(Received::Datagram(message.namespace, datagram));
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => return Ok(true),
                    Some(libc::ENOBUFS) => take(Received::Lost),
                    _ => return Err(error),
                },
            }
        }
        Ok(false)
    }

    fn next(&mut self) -> io::Result<Message> {
        // SAFETY: all zeros is a value of each of these structures of numbers and pointers.
        let (mut sender, mut header): (libc::sockaddr_nl, libc::msghdr) =
            unsafe { (mem::zeroed(), mem::zeroed()) };
        let mut part = libc::iovec {
            iov_base: self.buffer.as_mut_ptr().cast(),
            iov_len: self.buffer.len(),
        };
        let mut control = [0_u64; 8]; // aligned for a cmsghdr
        header.msg_name = (&raw mut sender).cast();
        header.msg_namelen = size_of_val(&sender) as libc::socklen_t;
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control) as _;
        // SAFETY: every pointer in the header points to a live object, whose length is in the header.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut header, 0) };
        self.length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        Ok(Message {
            sender: sender.nl_pid,
            truncated: header.msg_flags & libc::MSG_TRUNC != 0,
            namespace: namespace_of(&header),
        })
    }
}

/// Metadata of a received datagram.
struct Message {
    /// Port id of the sender. 0: the kernel.
    sender: u32,
    truncated: bool,
    namespace: Option<i32>,
}

/// Returns the number of the namespace that a datagram comes from. `netlink_cmsg_listen_all_nsid()`
/// (`net/netlink/af_netlink.c`) attaches this number to datagrams of other namespaces.
fn namespace_of(header: &libc::msghdr) -> Option<i32> {
    // SAFETY: the header's control buffer is alive, and the kernel has set its length. The macros stay within this
    // length, and this code reads a number only if the message has space for one.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(control) = next.as_ref() {
            let room = libc::CMSG_LEN(size_of::<i32>() as u32);
            if control.cmsg_level == libc::SOL_NETLINK
                && control.cmsg_type == libc::NETLINK_LISTEN_ALL_NSID
                && control.cmsg_len >= room as _
            {
                return Some(libc::CMSG_DATA(control).cast::<i32>().read_unaligned());
            }
            next = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}
