// SPDX-License-Identifier: Apache-2.0
//! Work in a network namespace without an external program: reading its sysfs, settings of its drivers, raw frames.

use integration::Netns;
use nix::{
    libc,
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
};
use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    path::Path,
};

/// The protocol of the tests' frames (`ETH_P_802_EX1`).
const PROTOCOL: u16 = 0x88b5;

/// Runs `work` on a thread in `netns` with a sysfs of this namespace, and returns the result.
#[track_caller]
pub(crate) fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> T + Send) -> T {
    let opened = rdma_netns::netns::Netns::open(netns.path()).expect("a namespace");
    let work = || {
        let nothing = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(nothing, "/", nothing, private, nothing).expect("private mounts");
        mount(
            Some("sysfs"),
            "/sys",
            Some("sysfs"),
            MsFlags::empty(),
            nothing,
        )
        .expect("a sysfs");
        work()
    };
    opened.run(work).expect("a thread")
}

/// Writes an attribute of `link`, such as `gro_flush_timeout`, in the thread's namespace.
pub(crate) fn write_attribute(link: &str, attribute: &str, value: &str) -> io::Result<()> {
    fs::write(
        Path::new("/sys/class/net").join(link).join(attribute),
        value,
    )
}

/// Attributes that change by themselves or with a move: numbers of netdevs, states of the medium, origins of name and
/// address.
const PASSING: [&str; 17] = [
    "addr_assign_type",
    "carrier",
    "carrier_changes",
    "carrier_down_count",
    "carrier_up_count",
    "dormant",
    "duplex",
    "flags",
    "ifindex",
    "iflink",
    "name_assign_type",
    "operstate",
    "speed",
    "statistics",
    "testing",
    "uevent",
    "power",
];

/// The attributes of all netdevs in the thread's sysfs, by path, without [`PASSING`].
pub(crate) fn attributes() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let netdevs = fs::read_dir("/sys/class/net").expect("netdevs");
    for netdev in netdevs.flatten() {
        gather(&netdev.path(), &mut all);
    }
    all
}

fn gather(directory: &Path, all: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        let is_passing = name.to_str().is_none_or(|it| PASSING.contains(&it));
        let kind = entry.file_type().expect("a kind");
        if is_passing {
            continue;
        }
        if kind.is_dir() {
            gather(&path, all);
        } else if kind.is_file() {
            // some attributes cannot be read for this type of netdev
            let value = fs::read(&path).map_err(|error| error.to_string());
            let value = value.map(|it| String::from_utf8_lossy(&it).trim_end().to_owned());
            let key = path.display().to_string();
            all.insert(key, value.unwrap_or_else(|error| error));
        }
    }
}

/// Switches the features `bits` among the first 32 on or off, as `ethtool -K` does (`ETHTOOL_SFEATURES`).
pub(crate) fn set_features(link: &str, bits: u32, on: bool) -> io::Result<()> {
    const ETHTOOL_SFEATURES: u32 = 0x3b;
    let value = if on { bits } else { 0 };
    ethtool(link, &mut [ETHTOOL_SFEATURES, 2, bits, value, 0, 0])
}

/// `ethtool -L LINK rx N tx N`
pub(crate) fn set_channels(link: &str, count: u32) -> io::Result<()> {
    const ETHTOOL_SCHANNELS: u32 = 0x3d;
    ethtool(
        link,
        &mut [ETHTOOL_SCHANNELS, 0, 0, 0, 0, count, count, 0, 0],
    )
}

/// The numbers of channels, and the requested features.
pub(crate) fn driver_settings(link: &str) -> io::Result<Vec<u32>> {
    let mut features = [0_u32; 34];
    (features[0], features[1]) = (0x3a, 8);
    ethtool(link, &mut features)?;
    let mut channels = [0_u32; 9];
    channels[0] = 0x3c;
    let counts = match ethtool(link, &mut channels) {
        Ok(()) => channels[5..].to_vec(),
        Err(_) => vec![],
    };
    Ok([vec![features[3], features[7]], counts].concat())
}

fn ethtool(link: &str, words: &mut [u32]) -> io::Result<()> {
    const SIOCETHTOOL: u32 = 0x8946;
    let socket = packet_socket(0)?;
    // SAFETY: the structure consists of numbers and pointers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, byte) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = byte as _;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the array contains the whole structure of the command.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A packet socket that receives the tests' frames from all netdevs of the thread's namespace.
pub(crate) fn listener() -> OwnedFd {
    packet_socket(PROTOCOL).expect("a packet socket")
}

fn packet_socket(protocol: u16) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call has no address as an argument.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, i32::from(protocol.to_be())) };
    match fd {
        // SAFETY: the kernel has opened the descriptor for this call, and no other object owns it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Broadcasts a frame with `text` from each netdev of the thread's namespace except loopback. Ignores a netdev that
/// refuses the frame.
pub(crate) fn send_by_all(text: &str) {
    let socket = packet_socket(0).expect("a packet socket");
    for netdev in fs::read_dir("/sys/class/net").expect("netdevs").flatten() {
        if netdev.file_name() == "lo" {
            continue;
        }
        let index = fs::read_to_string(netdev.path().join("ifindex"));
        let Some(index) = index.ok().and_then(|it| it.trim().parse().ok()) else {
            continue;
        };
        let name = netdev.file_name();
        let payload = format!("{text} {}", name.to_string_lossy());
        let frame = [
            &[0xff; 6][..],
            &[0x02, 0, 0, 0, 0, 0x77],
            &PROTOCOL.to_be_bytes(),
            &[payload.len() as u8],
            payload.as_bytes(),
            &[0; 60],
        ]
        .concat();
        // SAFETY: the structure consists of numbers.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = index;
        // SAFETY: frame and address have these lengths. A netdev that is down refuses the frame.
        let _ = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                frame.as_ptr().cast(),
                frame.len(),
                0,
                (&raw const to).cast(),
                size_of::<libc::sockaddr_ll>() as u32,
            )
        };
    }
}

/// Returns the texts of the frames that a [`listener`] received since the last call, except frames that its own
/// namespace sent.
pub(crate) fn received_texts(listener: &OwnedFd) -> Vec<String> {
    let mut texts = vec![];
    let mut frame = [0_u8; 2048];
    loop {
        // SAFETY: the structure consists of numbers.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the buffers for frame and address have these sizes.
        let received = unsafe {
            libc::recvfrom(
                listener.as_raw_fd(),
                frame.as_mut_ptr().cast(),
                frame.len(),
                0,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        let Ok(received) = usize::try_from(received) else {
            return texts;
        };
        let text = frame[..received].get(15..15 + usize::from(frame[14]));
        if from.sll_pkttype != libc::PACKET_OUTGOING
            && let Some(text) = text
        {
            texts.push(String::from_utf8_lossy(text).into_owned());
        }
    }
}
