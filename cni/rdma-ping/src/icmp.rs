// SPDX-License-Identifier: Apache-2.0
//! Sends one ICMP echo request. Its answer shows whether the fault is in RDMA or in the network.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
        recv, send, socket,
    },
};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd},
    process,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

/// Types of ICMP's echo request and echo reply (RFC 792).
const IPV4: (u8, u8) = (8, 0);
/// Types of ICMPv6's echo request and echo reply (RFC 4443).
const IPV6: (u8, u8) = (128, 129);

/// Payload of an echo request. The reply to the request has the same payload.
const PAYLOAD: &[u8; 16] = b"rdma-device-plug";

/// Sequence number of the next request. Each request of this process has its own number, because the kernel copies an
/// echo reply to each raw socket whose addresses fit, also to a socket that is not connected yet.
static NEXT: AtomicU16 = AtomicU16::new(1);

/// Sends an echo request from `source` in the calling thread's namespace. Returns true if `to` answers within
/// `timeout`.
///
/// # Errors
/// The kernel refuses the socket (`CAP_NET_RAW`) or the request.
pub(crate) fn answers(source: Option<IpAddr>, to: IpAddr, timeout: Duration) -> io::Result<bool> {
    let (family, protocol, (request, answer)) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, IPV4),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, IPV6),
    };
    let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    if let Some(source) = source {
        bind(
            socket.as_raw_fd(),
            &SockaddrStorage::from(SocketAddr::new(source, 0)),
        )?;
    }
    let (process, number) = (process::id() as u16, NEXT.fetch_add(1, Ordering::Relaxed));
    let id = (u32::from(process) << 16 | u32::from(number)).to_be_bytes();
    let to = SockaddrStorage::from(SocketAddr::new(to, 0));
    // to a connected socket, the kernel passes only packets from the peer, and reports that the peer is unreachable
    let connected = connect(socket.as_raw_fd(), &to);
    let sent = || send(socket.as_raw_fd(), &message(request, id), MsgFlags::empty());
    match connected.and_then(|()| sent()) {
        Ok(_) => {}
        Err(Errno::EHOSTUNREACH | Errno::ENETUNREACH) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    }
    let until = Instant::now() + timeout;
    let mut packet = [0; 512];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // while packets arrive, poll() never reports a timeout
        if left.is_zero() {
            return Ok(false);
        }
        let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], left) {
            Ok(0) => return Ok(false),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        match recv(socket.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
            Ok(length) if is_answer(&packet[..length], family, answer, id) => return Ok(true),
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            // a router, the peer or this kernel reports why the peer gets no request (`icmp_err_convert` and
            // `icmpv6_err_convert()` in the kernel)
            Err(
                Errno::EHOSTUNREACH
                | Errno::ENETUNREACH
                | Errno::ECONNREFUSED
                | Errno::EHOSTDOWN
                | Errno::ENONET
                | Errno::ENOPROTOOPT
                | Errno::EACCES
                | Errno::EPROTO,
            ) => {
                return Ok(false);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns an echo request with its checksum. `id` has the identifier and the sequence number. For ICMPv6 the kernel
/// computes the checksum.
fn message(kind: u8, id: [u8; 4]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0], &id[..], PAYLOAD].concat();
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks_exact(2)
        .map(|it| u32::from(u16::from_be_bytes([it[0], it[1]])));
    let sum: u32 = words.sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !((folded + (folded >> 16)) as u16)
}

/// Returns true if `packet` has the type `kind` and answers the request with `id`. On a raw IPv4 socket, the packet
/// begins with the IP header.
fn is_answer(packet: &[u8], family: AddressFamily, kind: u8, id: [u8; 4]) -> bool {
    let header = match (family, packet.first()) {
        (AddressFamily::Inet, Some(first)) => usize::from(first & 0xf) * 4,
        _ => 0,
    };
    let expected = |it: &[u8]| it[0] == kind && it[4..8] == id && it[8..] == *PAYLOAD;
    let message = packet.get(header..);
    message.is_some_and(|it| it.len() == 8 + PAYLOAD.len() && expected(it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sched::{CloneFlags, unshare};
    use std::{
        process::Command,
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
    };

    #[test]
    fn the_checksum_of_a_message_with_its_checksum_is_zero() {
        assert_eq!(checksum(&message(8, [0xab, 0xcd, 0, 1])), 0);
        assert_eq!(checksum(&[0xff; 64]), 0);
    }

    #[test]
    fn only_the_own_answer_counts() {
        let (id, other) = ([1, 2, 3, 4], [1, 2, 3, 5]);
        let answer = message(0, id);
        let packet = [&[0x45; 20][..], &answer].concat();
        assert!(is_answer(&packet, AddressFamily::Inet, 0, id));
        assert!(!is_answer(&packet, AddressFamily::Inet, 0, other));
        assert!(!is_answer(&packet, AddressFamily::Inet, 8, id));
        assert!(!is_answer(&packet[..30], AddressFamily::Inet, 0, id));
        assert!(!is_answer(&[], AddressFamily::Inet, 0, id));
        let answer = message(129, id);
        assert!(is_answer(&answer, AddressFamily::Inet6, 129, id));
    }

    /// Two threads send requests from one address. The kernel copies an echo reply to the raw sockets of both threads.
    #[test]
    fn another_peers_answer_does_not_count() {
        thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
            let script = "ip link add name out type veth peer name far
                          ip link set lo up; ip link set out up; ip link set far up
                          ip addr add 192.0.2.1/24 dev out; ip addr add 2001:db8::1/64 dev out nodad";
            let made = Command::new("sh").args(["-ec", script]).status();
            assert!(made.expect("a shell").success());
            // no netdev has the second address
            for (own, silent) in [("192.0.2.1", "192.0.2.77"), ("2001:db8::1", "2001:db8::77")] {
                let [own, silent] = [own, silent].map(|it| it.parse().expect("an address"));
                let answered = |to, limit| answers(Some(own), to, limit);
                let ended = AtomicBool::new(false);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        while !ended.load(Relaxed) {
                            let is_answered = answered(own, Duration::from_secs(5));
                            assert!(is_answered.expect("an echo"));
                        }
                    });
                    let (begin, limit) = (Instant::now(), Duration::from_millis(300));
                    let is_answered = answered(silent, limit);
                    ended.store(true, Relaxed);
                    assert!(!is_answered.expect("an echo"), "{silent}");
                    assert!(begin.elapsed() < limit * 10, "{:?}", begin.elapsed());
                });
            }
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn the_own_addresses_answer() {
        for to in ["127.0.0.1", "::1"] {
            let to = to.parse().expect("an address");
            let answered = answers(Some(to), to, Duration::from_secs(5));
            assert!(answered.expect("an echo"), "{to}");
        }
    }
}
