// SPDX-License-Identifier: Apache-2.0
//! BPF programs on a netdev: XDP programs, and tc programs without a queueing discipline (tcx). The kernel detaches
//! neither kind when the netdev moves (`__dev_change_net_namespace()`, `net/core/dev.c`).

use crate::DeviceSettings;
use nix::libc;
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

const BPF_PROG_DETACH: u32 = 9;
const BPF_PROG_GET_FD_BY_ID: u32 = 13;
const BPF_OBJ_GET_INFO_BY_FD: u32 = 15;
const BPF_PROG_QUERY: u32 = 16;
const BPF_LINK_GET_FD_BY_ID: u32 = 30;
const BPF_LINK_GET_NEXT_ID: u32 = 31;
const BPF_LINK_DETACH: u32 = 34;

/// Attach type of `enum bpf_attach_type` since Linux 6.6.
const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;

/// `enum bpf_link_type`
const LINK_TYPE_XDP: u32 = 6;

/// Largest number of programs at one attach point (`BPF_MPROG_MAX`, `include/linux/bpf_mprog.h`).
const MAX: usize = 64;

/// The part of `union bpf_attr` that this module uses, in 32-bit words.
type Attr = [u32; 32];

/// Adds the programs at both tcx attach points (Linux 6.6) of the netdev `index`, in the calling thread's namespace, to
/// `settings`.
#[cold]
pub(super) fn read(index: u32, settings: &mut DeviceSettings) {
    for (key, place) in [("tcx/ingress", TCX_INGRESS), ("tcx/egress", TCX_EGRESS)] {
        if let Ok(programs) = attached(index, place) {
            let ids: Vec<String> = programs.iter().map(|(id, _)| id.to_string()).collect();
            settings.set(key, &ids.join(" "));
        }
    }
}

/// Detaches all programs of the attach point `key` except those with the ids in `kept`.
///
/// # Errors
/// The kernel's error. `NotFound`: a program in `kept` is not attached.
#[cold]
pub(super) fn keep(index: u32, key: &str, kept: &str) -> io::Result<()> {
    let place = match key {
        "tcx/ingress" => TCX_INGRESS,
        _ => TCX_EGRESS,
    };
    let mut kept: Vec<u32> = kept.split(' ').filter_map(|it| it.parse().ok()).collect();
    for (program, link) in attached(index, place)? {
        if let Some(found) = kept.iter().position(|it| *it == program) {
            kept.remove(found);
        } else if link == 0 {
            let file = by_id(BPF_PROG_GET_FD_BY_ID, program)?;
            let mut attr = attr(&[index, file.as_raw_fd() as u32, place]);
            bpf(BPF_PROG_DETACH, &mut attr)?;
        } else {
            detach(&by_id(BPF_LINK_GET_FD_BY_ID, link)?)?;
        }
    }
    match kept.is_empty() {
        true => Ok(()),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Detaches the BPF links that attach the XDP program `program` to the netdev `index`.
#[cold]
pub(super) fn detach_xdp(index: u32, program: u32) -> io::Result<()> {
    let mut next = attr(&[0]);
    while bpf(BPF_LINK_GET_NEXT_ID, &mut next).is_ok() {
        let id = next[1];
        next = attr(&[id]);
        // the link has ended since the kernel returned its id
        let Ok(link) = by_id(BPF_LINK_GET_FD_BY_ID, id) else {
            continue;
        };
        // words of `struct bpf_link_info`: type, id, program, padding, and for XDP the netdev
        let mut info = [0_u32; 32];
        let mut about = attr(&[link.as_raw_fd() as u32, size_of_val(&info) as u32]);
        put(&mut about, 2, info.as_mut_ptr());
        bpf(BPF_OBJ_GET_INFO_BY_FD, &mut about)?;
        if info[0] == LINK_TYPE_XDP && info[2] == program && info[4] == index {
            detach(&link)?;
        }
    }
    Ok(())
}

/// Returns the programs at the attach point `place` of the netdev `index`, each with the id of its BPF link. Id 0: the
/// program has no BPF link.
#[cold]
fn attached(index: u32, place: u32) -> io::Result<Vec<(u32, u32)>> {
    let (mut programs, mut links) = ([0_u32; MAX], [0_u32; MAX]);
    let mut attr = attr(&[index, place]);
    put(&mut attr, 4, programs.as_mut_ptr());
    attr[6] = MAX as u32;
    put(&mut attr, 10, links.as_mut_ptr());
    bpf(BPF_PROG_QUERY, &mut attr)?;
    let count = (attr[6] as usize).min(MAX);
    let pairs = programs.into_iter().zip(links);
    Ok(pairs.take(count).collect())
}

fn detach(link: &OwnedFd) -> io::Result<()> {
    bpf(BPF_LINK_DETACH, &mut attr(&[link.as_raw_fd() as u32])).map(drop)
}

fn by_id(command: u32, id: u32) -> io::Result<OwnedFd> {
    let file = bpf(command, &mut attr(&[id]))?;
    // SAFETY: the kernel opened the descriptor for this call, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(file as i32) })
}

/// Returns `words`, and zeros after them.
fn attr(words: &[u32]) -> Attr {
    let mut attr = [0; 32];
    attr[..words.len()].copy_from_slice(words);
    attr
}

/// Writes a 64-bit address into two words of `attr`, from the even index `place`.
fn put(attr: &mut Attr, place: usize, address: *mut u32) {
    let address = (address as u64).to_ne_bytes();
    let (halves, _) = address.as_chunks();
    for (to, half) in attr[place..].iter_mut().zip(halves) {
        *to = u32::from_ne_bytes(*half);
    }
}

fn bpf(command: u32, attr: &mut Attr) -> io::Result<libc::c_long> {
    // SAFETY: every address in `attr` is the address of an array of the caller, and `attr` contains the length of this
    // array. All further words are 0, as older kernels with a shorter `union bpf_attr` require.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of::<Attr>()) };
    match done {
        0.. => Ok(done),
        _ => Err(io::Error::last_os_error()),
    }
}
