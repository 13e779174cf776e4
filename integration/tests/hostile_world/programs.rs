// SPDX-License-Identifier: Apache-2.0
//! BPF programs that a pod attaches to its rail, by `bpf(2)` and by rtnetlink.

use nix::libc;
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

const BPF_PROG_LOAD: u32 = 5;
const BPF_PROG_ATTACH: u32 = 8;
const BPF_LINK_CREATE: u32 = 28;

const TYPE_SCHED_CLS: u32 = 3;
const TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const ATTACH_TCX_INGRESS: u32 = 46;
const ATTACH_TCX_EGRESS: u32 = 47;

/// Verdicts of XDP and of tc that drop the packet.
const XDP_DROP: i32 = 1;
const TC_ACT_SHOT: i32 = 2;

/// The place at which a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// XDP, in the driver or in the kernel's generic code.
    Xdp,
    /// Before the network stack receives the packet.
    Ingress,
    /// Before the driver transmits the packet.
    Egress,
}

/// Attaches a program that drops all packets to the netdev `index` of the thread's namespace. With `link`, the
/// program stays attached until the returned descriptor is closed, and cannot be detached by the netdev.
pub(crate) fn attach(place: Place, index: u32, link: bool) -> io::Result<OwnedFd> {
    let (kind, verdict, attach) = match place {
        Place::Xdp => (TYPE_XDP, XDP_DROP, ATTACH_XDP),
        Place::Ingress => (TYPE_SCHED_CLS, TC_ACT_SHOT, ATTACH_TCX_INGRESS),
        Place::Egress => (TYPE_SCHED_CLS, TC_ACT_SHOT, ATTACH_TCX_EGRESS),
    };
    let program = load(kind, verdict, attach)?;
    let fd = program.as_raw_fd() as u32;
    let mut attr = [0_u32; 32];
    if link {
        attr[..3].copy_from_slice(&[fd, index, attach]);
        return bpf(BPF_LINK_CREATE, &mut attr).map(owned);
    }
    match place {
        Place::Xdp => set_xdp(index, fd)?,
        _ => {
            attr[..3].copy_from_slice(&[index, fd, attach]);
            bpf(BPF_PROG_ATTACH, &mut attr)?;
        }
    }
    Ok(program)
}

/// Loads the program `r0 = VERDICT; exit`.
fn load(kind: u32, verdict: i32, attach: u32) -> io::Result<OwnedFd> {
    let [a, b, c, d] = verdict.to_ne_bytes();
    let instructions: [u8; 16] = [0xb7, 0, 0, 0, a, b, c, d, 0x95, 0, 0, 0, 0, 0, 0, 0];
    let license = c"GPL";
    let mut attr = [0_u32; 32];
    attr[..2].copy_from_slice(&[kind, 2]);
    put(&mut attr, 2, instructions.as_ptr() as u64);
    put(&mut attr, 4, license.as_ptr() as u64);
    attr[17] = attach;
    bpf(BPF_PROG_LOAD, &mut attr).map(owned)
}

/// Sets `IFLA_XDP` to the program's descriptor.
fn set_xdp(index: u32, program: u32) -> io::Result<()> {
    let socket = netlink_socket()?;
    let words: [u32; 12] = [
        48,             // length
        19 | (5 << 16), // RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK
        1,
        0,
        0,
        index,
        0,
        0,
        12 | (0x802b << 16), // IFLA_XDP, nested
        8 | (1 << 16),       // IFLA_XDP_FD
        program,
        0,
    ];
    let length = 44;
    let mut message = words;
    message[0] = length;
    // SAFETY: the message has this length.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            message.as_ptr().cast(),
            length as usize,
            0,
        )
    };
    let mut answer = [0_u32; 64];
    // SAFETY: the buffer for the answer has this size.
    let received = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            answer.as_mut_ptr().cast(),
            size_of_val(&answer),
            0,
        )
    };
    if sent < 0 || received < 20 {
        return Err(io::Error::last_os_error());
    }
    match answer[4] as i32 {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn netlink_socket() -> io::Result<OwnedFd> {
    // SAFETY: the call has no address as an argument.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    match fd {
        0.. => Ok(owned(fd.into())),
        _ => Err(io::Error::last_os_error()),
    }
}

fn put(attr: &mut [u32; 32], place: usize, address: u64) {
    attr[place] = address as u32;
    attr[place + 1] = (address >> 32) as u32;
}

fn owned(fd: libc::c_long) -> OwnedFd {
    // SAFETY: the kernel has opened the descriptor for this call, and no other object owns it.
    unsafe { OwnedFd::from_raw_fd(fd as i32) }
}

fn bpf(command: u32, attr: &mut [u32; 32]) -> io::Result<libc::c_long> {
    // SAFETY: all addresses in `attr` are those of arrays that live until the call returns.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), 128) };
    match done {
        0.. => Ok(done),
        _ => Err(io::Error::last_os_error()),
    }
}
