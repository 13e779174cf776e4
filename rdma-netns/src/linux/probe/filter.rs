// SPDX-License-Identifier: Apache-2.0
//! Socket filter that accepts only packets about certain addresses. Without the filter, other packets could fill the
//! socket's limited buffer between two reads, and the kernel would drop answers.

use super::packet::{
    ADVERTISEMENT, ICMPV6, IPV6, ND_TARGET, NEXT_HEADER, SENDER, SOLICITATION, TARGET, TYPE,
};
use crate::linux::packet_socket::ARP;
use nix::libc::{self, sock_filter};
use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Ancillary data of a packet (`SKF_AD_*`, `include/uapi/linux/filter.h`).
const PROTOCOL: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PROTOCOL) as u32;
const DIRECTION: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;

const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const EQUALS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_JA;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

const ALL: u32 = u32::MAX;
const NOTHING: u32 = 0;

/// Makes `socket`, whose packets begin at the network header, receive only packets about `addresses`. Packets that this
/// machine sends are excluded.
pub(super) fn attach(socket: BorrowedFd<'_>, addresses: &[IpAddr]) -> io::Result<()> {
    let mut filter = program(addresses);
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program, and the instructions to which it points, live until the call returns and have the stated
    // sizes. The descriptor is open.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn program(addresses: &[IpAddr]) -> Vec<sock_filter> {
    let (mut arp, mut ipv6) = (vec![], vec![]);
    for address in addresses {
        match address {
            IpAddr::V4(address) => {
                for at in [SENDER, TARGET] {
                    let compare = compare(at, &[u32::from(*address)], returns(ALL));
                    arp.extend(compare);
                }
            }
            IpAddr::V6(address) => {
                let bits = u128::from(*address);
                let words = [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
                ipv6.extend(compare(ND_TARGET, &words, returns(ALL)));
            }
        }
    }
    arp.push(returns(NOTHING));
    ipv6.push(returns(NOTHING));
    let mut program = vec![
        instruction(WORD, DIRECTION),
        unless(libc::PACKET_OUTGOING.into(), 1),
        returns(NOTHING),
        instruction(WORD, PROTOCOL),
        unless(ARP.into(), 1),
        // jumps over the nine instructions before the IPv6 comparisons, and over the comparisons
        instruction(JUMP, 9 + ipv6.len() as u32),
        unless(IPV6.into(), 7),
        instruction(BYTE, NEXT_HEADER as u32),
        unless(ICMPV6.into(), 5),
        instruction(BYTE, TYPE as u32),
        unless(SOLICITATION.into(), 1),
        instruction(JUMP, 3),
        unless(ADVERTISEMENT.into(), 1),
        instruction(JUMP, 1),
        returns(NOTHING),
    ];
    program.extend(ipv6);
    program.extend(arp);
    program
}

/// Returns instructions that execute `then` if the words of the packet from offset `at` on equal `words`. If they
/// differ, execution continues after these instructions.
fn compare(at: usize, words: &[u32], then: sock_filter) -> Vec<sock_filter> {
    let count = words.len();
    let mut program = vec![];
    for (index, word) in words.iter().enumerate() {
        program.push(instruction(WORD, (at + 4 * index) as u32));
        program.push(unless(*word, (2 * (count - index) - 1) as u8));
    }
    program.push(then);
    program
}

fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Returns an instruction that jumps over `count` instructions if the loaded value differs from `value`.
fn unless(value: u32, count: u8) -> sock_filter {
    sock_filter {
        jf: count,
        ..instruction(EQUALS, value)
    }
}

fn returns(length: u32) -> sock_filter {
    instruction(RETURN, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the classic BPF program on a packet of `protocol`, as the kernel does.
    fn passes(program: &[sock_filter], direction: u32, protocol: u16, packet: &[u8]) -> bool {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let it = program[at];
            let (code, k) = (u32::from(it.code), it.k as usize);
            at += 1;
            match code {
                WORD if it.k == DIRECTION => loaded = direction,
                WORD if it.k == PROTOCOL => loaded = protocol.into(),
                WORD => match packet.get(k..k + 4) {
                    Some(bytes) => loaded = u32::from_be_bytes(bytes.try_into().expect("four")),
                    None => return false,
                },
                BYTE => match packet.get(k) {
                    Some(byte) => loaded = (*byte).into(),
                    None => return false,
                },
                EQUALS if loaded == it.k => at += usize::from(it.jt),
                EQUALS => at += usize::from(it.jf),
                JUMP => at += k,
                RETURN => return it.k != 0,
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn only_packets_about_an_address_pass() {
        use super::super::packet::{arp_probe, solicitation};
        let addresses = |count: u8| -> Vec<IpAddr> {
            (1..=count)
                .flat_map(|it| [format!("10.0.0.{it}"), format!("fd00::{it}")])
                .map(|text| text.parse().expect("an address"))
                .collect()
        };
        let arp = |last| arp_probe([10, 0, 0, last].into(), [2, 0, 0, 0, 0, 1]);
        let nd = |last: u16| solicitation([0xfd00, 0, 0, 0, 0, 0, 0, last].into());
        for count in [0, 1, 2, 40] {
            let program = program(&addresses(count));
            for number in [1, 2, 3, 40, 41] {
                let concerns = number <= count;
                assert_eq!(passes(&program, 0, ARP, &arp(number)), concerns);
                assert!(!passes(&program, 4, ARP, &arp(number)), "one's own");
                // numbers from 1 to 9 have the same digits in hexadecimal and decimal
                if number < 10 {
                    assert_eq!(passes(&program, 0, IPV6, &nd(number.into())), concerns);
                    let mut advertisement = nd(number.into());
                    advertisement[TYPE] = ADVERTISEMENT;
                    assert_eq!(passes(&program, 0, IPV6, &advertisement), concerns);
                    advertisement[TYPE] = 134;
                    assert!(!passes(&program, 0, IPV6, &advertisement));
                    let mut udp = nd(number.into());
                    udp[NEXT_HEADER] = 17;
                    assert!(!passes(&program, 0, IPV6, &udp));
                    assert!(!passes(&program, 0, 0x0800, &nd(number.into())));
                }
                let mut packet = arp(41);
                packet[SENDER..SENDER + 4].copy_from_slice(&[10, 0, 0, number]);
                assert_eq!(passes(&program, 0, ARP, &packet), concerns);
            }
            assert!(!passes(&program, 0, ARP, &[0; 20]));
        }
    }
}
