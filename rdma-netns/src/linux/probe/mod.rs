// SPDX-License-Identifier: Apache-2.0
//! Probes whether an address is free: by ARP probes (RFC 5227, section 2.1.1), and by neighbour solicitations from the
//! unspecified address (RFC 4862, section 5.4).
//!
//! One packet socket in the pod's namespace sends and receives for all netdevs. ARP announcements use the same socket
//! (`Space::packet`). The socket stays open between two reads, so the kernel queues packets meanwhile. An ipvlan child
//! has its parent's hardware address. The ARP answer to its probe contains no IP address of the child, so the kernel
//! passes the answer to the parent. So a socket on the host receives the answers for ipvlan children.

mod filter;
mod packet;

use super::{
    Linux, Space, link_messages, links,
    packet_socket::{self, ARP, EVERYBODY, Mac},
};
use crate::{
    HardwareAddress, InterfaceName,
    netlink::NetlinkError,
    probe::{Conflict, INTERVAL, PROBES, ProbeObstacle, Probed, Question, Sign},
};
use nix::{
    errno::Errno,
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{LinkAddr, MsgFlags, recvmsg},
};
use packet::Claim;
use std::{
    io::{self, IoSliceMut},
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Size of the receive buffer in bytes. The parser needs fewer bytes of a packet.
const PACKET: usize = 128;

/// Time to wait for further answers after the first answer.
const OTHERS: Duration = Duration::from_millis(2);

/// A question that can be sent, with the index and the hardware address that its netdev has now.
struct Probe<'a> {
    question: &'a Question,
    index: u32,
    mac: Mac,
}

/// Senders whose packets count as answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// All hardware addresses. Probes from the netdev's own hardware address do not count, because a switch may send
    /// them back. Other messages from this address count, because an ipvlan child of the same parent has the same
    /// hardware address.
    Any,
    /// Hardware addresses other than the netdev's own, because the netdev itself has announced the addresses.
    Others,
}

impl Linux {
    /// Probes addresses in this program's namespace, as [`Kernel::probe`](crate::Kernel::probe) does in a pod's
    /// namespace.
    ///
    /// # Errors
    /// The kernel refuses the packet socket (`CAP_NET_RAW` is missing), or a netdev does not exist.
    pub fn probe_here(&self, questions: &[Question]) -> io::Result<Probed> {
        self.ask(self.host()?, questions)
    }

    /// Sends probes through all netdevs at once, and waits for a conflict or the end of the probe time.
    pub(super) fn ask(&self, pod: &Space, questions: &[Question]) -> io::Result<Probed> {
        let (probed, not_probed) = sort(pod, questions)?;
        let (conflicts, waited) = match probed.is_empty() {
            true => Default::default(),
            // after an error no caller reads announcements, so this function leaves the multicast groups
            false => self.probe_all(pod, &probed).inspect_err(|_| pod.leave())?,
        };
        Ok(Probed {
            conflicts,
            not_probed,
            waited,
        })
    }

    /// Returns the hosts that claimed since the probe to have one of the addresses. Does not wait. Leaves the multicast
    /// groups: the addresses are set now, and the kernel itself has joined the groups.
    pub(super) fn listen(&self, pod: &Space, questions: &[Question]) -> io::Result<Vec<Conflict>> {
        let conflicts = self.listen_all(pod, questions);
        pod.leave();
        conflicts
    }

    fn listen_all(&self, pod: &Space, questions: &[Question]) -> io::Result<Vec<Conflict>> {
        let (probed, _) = sort(pod, questions)?;
        let mut conflicts = vec![];
        for receiver in self.receivers(pod, &probed)? {
            read_claims(receiver, &probed, Whose::Others, &mut conflicts)?;
        }
        conflicts.retain(|conflict| conflict.sign == Sign::Has);
        Ok(conflicts)
    }

    /// Sends the probes. Returns the conflicts, and the time for which this program waited for answers.
    fn probe_all(
        &self,
        pod: &Space,
        probes: &[Probe<'_>],
    ) -> io::Result<(Vec<Conflict>, Duration)> {
        let receivers = self.receivers(pod, probes)?;
        let addresses: Vec<IpAddr> = probes.iter().map(|it| it.question.address).collect();
        for receiver in &receivers {
            let socket = receiver.space.packet()?;
            filter::attach(socket, &addresses)?;
            packet_socket::bind(socket, receiver.protocol)?;
        }
        join(pod, probes)?;
        let socket = pod.packet()?;
        let mut conflicts = vec![];
        let mut waited = Duration::ZERO;
        for _ in 0..PROBES {
            for it in probes {
                send(socket, it)?;
            }
            let mut until = Instant::now() + INTERVAL;
            loop {
                let before = conflicts.len();
                for receiver in &receivers {
                    read_claims(*receiver, probes, Whose::Any, &mut conflicts)?;
                }
                if before == 0 && !conflicts.is_empty() {
                    until = until.min(Instant::now() + OTHERS);
                }
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let begin = Instant::now();
                wait(&receivers, left)?;
                waited += begin.elapsed().min(left);
            }
            if !conflicts.is_empty() {
                break;
            }
        }
        Ok((conflicts, waited))
    }

    /// Returns the sockets that receive answers: the pod's socket, and the host's socket if the host receives answers
    /// for a question.
    fn receivers<'a>(
        &'a self,
        pod: &'a Space,
        probes: &[Probe<'_>],
    ) -> io::Result<Vec<Receiver<'a>>> {
        let mut receivers = vec![Receiver {
            space: pod,
            protocol: libc::ETH_P_ALL as u16,
            is_host: false,
        }];
        if probes.iter().any(|it| it.question.answered_at.is_some()) {
            receivers.push(Receiver {
                space: self.host()?,
                protocol: ARP,
                is_host: true,
            });
        }
        Ok(receivers)
    }
}

/// A packet socket that receives answers. The host's socket receives the answers for ipvlan children.
#[derive(Clone, Copy)]
struct Receiver<'a> {
    space: &'a Space,
    protocol: u16,
    is_host: bool,
}

/// The questions that can be sent, and the netdevs of all other questions, each with the reason.
type Sorted<'a> = (Vec<Probe<'a>>, Vec<(InterfaceName, ProbeObstacle)>);

fn sort<'a>(pod: &Space, questions: &'a [Question]) -> io::Result<Sorted<'a>> {
    let (mut probes, mut not_probed): Sorted<'a> = (vec![], vec![]);
    let mut socket = pod.route();
    for question in questions {
        let answers = socket.request(&link_messages::find(&question.link), 0);
        let answers = answers.map_err(|NetlinkError { source, .. }| source)?;
        let found = answers.bodies().find_map(|body| {
            let index = link_messages::index(body)?;
            Some((index, links::can_ask(body)))
        });
        match found {
            Some((index, Ok(mac))) => probes.push(Probe {
                question,
                index,
                mac,
            }),
            Some((_, Err(why))) => {
                let reason = (question.link.clone(), why);
                if !not_probed.contains(&reason) {
                    not_probed.push(reason);
                }
            }
            None => return Err(io::Error::from_raw_os_error(libc::ENODEV)),
        }
    }
    Ok((probes, not_probed))
}

/// Joins the multicast groups of the addresses. Other hosts send solicitations to these groups. Netdevs and switches
/// filter by group, and the kernel reports memberships to switches (RFC 4862, section 5.4.2).
fn join(pod: &Space, probes: &[Probe<'_>]) -> io::Result<()> {
    for it in probes {
        if let IpAddr::V6(address) = it.question.address {
            pod.join(&packet::group(address), it.index)?;
        }
    }
    Ok(())
}

fn send(socket: BorrowedFd<'_>, probe: &Probe<'_>) -> io::Result<()> {
    let (packet, protocol, to) = match probe.question.address {
        IpAddr::V4(address) => {
            let packet = packet::arp_probe(address, probe.mac);
            (packet, ARP, EVERYBODY)
        }
        IpAddr::V6(address) => {
            let to = packet::group_mac(packet::group(address));
            (packet::solicitation(address), packet::IPV6, to)
        }
    };
    let to = (protocol, to);
    packet_socket::send(socket, &packet, to, probe.index, MsgFlags::MSG_DONTWAIT)
}

/// Reads all packets that the socket `receiver` has received. Adds a conflict for each address that another host claims.
fn read_claims(
    receiver: Receiver<'_>,
    probes: &[Probe<'_>],
    whose: Whose,
    conflicts: &mut Vec<Conflict>,
) -> io::Result<()> {
    let socket = receiver.space.packet()?;
    while let Some((index, claim)) = receive(socket)? {
        let Some(claim) = claim else {
            continue;
        };
        let concerns = |it: &&Probe<'_>| {
            let at = match receiver.is_host {
                true => it.question.answered_at,
                false => Some(it.index),
            };
            at == Some(index) && it.question.address == claim.address
        };
        let Some(probe) = probes.iter().find(concerns) else {
            continue;
        };
        let is_own = claim.by.0 == probe.mac;
        if is_own && (whose == Whose::Others || claim.sign == Sign::Probes) {
            continue;
        }
        let is_known = |it: &Conflict| {
            (&it.link, it.address) == (&probe.question.link, probe.question.address)
        };
        if !conflicts.iter().any(is_known) {
            conflicts.push(Conflict {
                link: probe.question.link.clone(),
                address: claim.address,
                by: claim.by,
                sign: claim.sign,
            });
        }
    }
    Ok(())
}

/// Returns the next packet: the index of its netdev, and the packet's claim to an address, if it makes one. Returns
/// `None` if no packet is pending.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<(u32, Option<Claim>)>> {
    let mut bytes = [0_u8; PACKET];
    loop {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<LinkAddr>(
            socket.as_raw_fd(),
            &mut buffers,
            None,
            MsgFlags::MSG_DONTWAIT,
        );
        let (length, from) = match received {
            Ok(received) => (received.bytes, received.address),
            Err(Errno::EAGAIN) => return Ok(None),
            // a netdev went down: the kernel reports this once, and returns no packet
            Err(Errno::ENETDOWN | Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        // a packet of an IPoIB netdev has no MAC, because its hardware address is too long; no question is about such a
        // netdev
        let Some(from) = from.as_ref().map(LinkAddr::as_ref) else {
            continue;
        };
        let mac = from.sll_addr.get(..from.sll_halen.into());
        let answer = packet::read(
            u16::from_be(from.sll_protocol),
            &bytes[..length],
            mac.unwrap_or_default(),
        );
        return Ok(Some((from.sll_ifindex as u32, answer)));
    }
}

/// Waits until a socket has received a packet, at most for the time `left`.
fn wait(receivers: &[Receiver<'_>], left: Duration) -> io::Result<()> {
    let mut sockets = vec![];
    for receiver in receivers {
        sockets.push(PollFd::new(receiver.space.packet()?, PollFlags::POLLIN));
    }
    let milliseconds = left.as_micros().div_ceil(1000);
    let limit = PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::ZERO);
    match poll(&mut sockets, limit) {
        Ok(_) | Err(nix::Error::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Decodes a packet of the Ethernet type `protocol` from the hardware address `from`. Returns the IP address that the
/// sender has or probes, and the sender's hardware address.
pub fn decode(protocol: u16, packet: &[u8], from: &[u8]) -> Option<(IpAddr, HardwareAddress)> {
    packet::read(protocol, packet, from).map(|it| (it.address, it.by))
}
