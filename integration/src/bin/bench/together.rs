// SPDX-License-Identifier: Apache-2.0
//! Time to move several netdevs: by one request for each netdev, by these requests in one message, and by one request
//! for a group of netdevs. The requests move the netdevs into the pod's namespace, and change nothing else.

use super::{
    rails,
    run::{median_of, milliseconds, runs},
};
use integration::{Netns, Node};
use nix::{
    libc,
    sys::socket::{
        AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
        socket,
    },
};
use std::{
    ffi::CString,
    fs::File,
    os::fd::{AsRawFd, OwnedFd},
    time::Instant,
};

const RUNS: usize = 15;
const RAILS: u32 = 8;
/// Number of a group that no other netdev of the node has.
const GROUP: u32 = 77;

/// Requests that the kernel move all rails into the namespace of a descriptor, and waits for the kernel's answers.
type Ask = fn(&OwnedFd, u32);

/// The ways to request the moves, each with its name and function.
const WAYS: [(&str, Ask); 3] = [
    ("eight requests, one after the other", by_requests),
    ("eight requests in one message", by_one_message),
    ("one request for their group", by_group),
];

/// Measures in the host's namespace of `node`, which has `eth1`.
pub(super) fn measure(node: &Node) {
    rails::furnish(node, RAILS);
    let mut times = WAYS.map(|_| vec![]);
    for _ in 0..runs(RUNS) {
        for ((_, ask), times) in WAYS.iter().zip(&mut times) {
            times.push(timed(node, *ask));
        }
    }
    println!(
        "\n{RAILS} netdevs that move to a pod, with nothing around it: {} runs, in turn\n",
        runs(RUNS)
    );
    println!("{:<38} {:>10} {:>10}", "", "median, ms", "least, ms");
    for ((title, _), times) in WAYS.iter().zip(&times) {
        let least = times.iter().copied().fold(f64::INFINITY, f64::min);
        let median = median_of(times.iter().copied());
        println!("{title:<38} {median:>10.0} {least:>10.0}");
    }
}

/// Returns the time to move all rails into a new pod, in milliseconds. Then restores the rails on the host.
fn timed(node: &Node, ask: Ask) -> f64 {
    let pod = Netns::new("together");
    let namespace = File::open(pod.path()).expect("the pod's namespace");
    let namespace = u32::try_from(namespace.as_raw_fd()).expect("a descriptor");
    let each = |of: fn(u32, &str) -> String, to: &str| -> Vec<String> {
        (1..=RAILS).map(|rail| of(rail, to)).collect()
    };
    let group = |rail: u32, to: &str| format!("link set dev eth{rail} group {to}");
    node.host.ip_batch(&each(group, &GROUP.to_string()));
    let kernel = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )
    .expect("a socket");
    let start = Instant::now();
    ask(&kernel, namespace);
    let took = milliseconds(start.elapsed());
    for rail in 1..=RAILS {
        assert!(pod.has_link(&format!("eth{rail}")), "eth{rail} has moved");
    }
    let back = |rail: u32, to: &str| format!("link set dev eth{rail} netns {to}");
    pod.ip_batch(&each(back, node.host.name()));
    node.host.ip_batch(&each(group, "default"));
    rails::furnish(node, RAILS);
    took
}

fn by_requests(kernel: &OwnedFd, namespace: u32) {
    for rail in 1..=RAILS {
        send(
            kernel,
            &request(index_of(rail), &[(libc::IFLA_NET_NS_FD, namespace)]),
        );
        wait_for(kernel, 1);
    }
}

fn by_one_message(kernel: &OwnedFd, namespace: u32) {
    let requests =
        (1..=RAILS).flat_map(|rail| request(index_of(rail), &[(libc::IFLA_NET_NS_FD, namespace)]));
    send(kernel, &requests.collect::<Vec<u8>>());
    wait_for(kernel, RAILS);
}

/// Moves the rails by one request for their group (`rtnl_group_changelink()`, `net/core/rtnetlink.c`).
fn by_group(kernel: &OwnedFd, namespace: u32) {
    let attributes = [(libc::IFLA_GROUP, GROUP), (libc::IFLA_NET_NS_FD, namespace)];
    send(kernel, &request(0, &attributes));
    wait_for(kernel, 1);
}

fn index_of(rail: u32) -> u32 {
    let name = CString::new(format!("eth{rail}")).expect("no zero");
    nix::net::if_::if_nametoindex(name.as_c_str()).expect("a rail of the host")
}

/// Returns an `RTM_NEWLINK` that changes a netdev, or a group of netdevs if the index is 0 (`struct nlmsghdr`,
/// `linux/netlink.h`; `struct ifinfomsg`, `linux/rtnetlink.h`).
fn request(index: u32, attributes: &[(u16, u32)]) -> Vec<u8> {
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_ACK).expect("two bits");
    let length = 32 + 8 * u32::try_from(attributes.len()).expect("a few");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(libc::RTM_NEWLINK.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    // the message's number and sender, then the netdev's family and type, all zero
    message.extend([0; 12]);
    message.extend(index.to_ne_bytes());
    // the netdev's flags and the mask of changed flags, both zero
    message.extend([0; 8]);
    for (kind, value) in attributes {
        message.extend(8_u16.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend(value.to_ne_bytes());
    }
    message
}

fn send(kernel: &OwnedFd, message: &[u8]) {
    let sent = sendto(
        kernel.as_raw_fd(),
        message,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    );
    assert_eq!(sent, Ok(message.len()));
}

/// Waits until the kernel has acknowledged `requests` requests (`struct nlmsgerr`, `linux/netlink.h`).
fn wait_for(kernel: &OwnedFd, mut requests: u32) {
    while requests > 0 {
        let mut buffer = [0; 4096];
        let length = recv(kernel.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("an answer");
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let field = |at: usize| i32::from_ne_bytes(rest[at..at + 4].try_into().expect("four"));
            assert_eq!(field(16), 0, "the kernel refused a move");
            let length = usize::try_from(field(0)).expect("a length");
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
            requests -= 1;
        }
    }
}
