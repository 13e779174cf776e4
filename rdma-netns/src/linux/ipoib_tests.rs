// SPDX-License-Identifier: Apache-2.0
//! Tests of IPoIB netdevs. Messages are compared with `include/uapi/linux/if_link.h` and
//! `drivers/infiniband/ulp/ipoib/ipoib_netlink.c`.

use super::*;
use crate::{
    Child,
    linux::{children::NewChild, links},
};
use std::{
    fs,
    os::fd::{AsFd, AsRawFd},
};

const HEADER: usize = 16;
const IFLA_LINKINFO: u16 = 18;

/// Returns `struct nlattr` with its value, padded to a multiple of four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).expect("short");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn of_kind(kind: &str, data: &[u8]) -> Vec<u8> {
    [
        attribute(IFLA_INFO_KIND, kind.as_bytes()),
        attribute(IFLA_INFO_DATA, data),
    ]
    .concat()
}

/// Returns the three IPoIB attributes, each of 16 bits (`ipoib_policy`).
fn ipoib(pkey: u16, mode: u16, umcast: u16) -> Vec<u8> {
    let attributes = [(1, pkey), (2, mode), (3, umcast)];
    let attributes = attributes.map(|(kind, value)| attribute(kind, &value.to_ne_bytes()));
    of_kind("ipoib\0", &attributes.concat())
}

/// Returns `struct ifinfomsg` with the attributes that follow it, and the message type of the request.
fn bytes(message: &RouteNetlinkMessage) -> (Vec<u8>, u16) {
    use netlink_packet_core::NetlinkSerializable;
    let mut body = vec![0; message.buffer_len()];
    message.serialize(&mut body);
    (body, message.message_type())
}

const RTM_NEWLINK: u16 = 16;

#[test]
fn every_attribute_of_an_ipoib_netdev_is_read() {
    let expected = |pkey, mode, umcast| Ipoib {
        pkey: Pkey(pkey),
        mode,
        umcast,
    };
    assert_eq!(
        parse(&ipoib(0xffff, 0, 0)),
        Some(expected(0xffff, IpoibMode::Datagram, false))
    );
    assert_eq!(
        parse(&ipoib(0x8001, 1, 1)),
        Some(expected(0x8001, IpoibMode::Connected, true))
    );
    assert_eq!(parse(&of_kind("ipvlan\0", &[])), None);
    assert_eq!(parse(&of_kind("ipoib\0", &[])), None);
}

/// The kernel reports no `IFLA_LINK` for an IPoIB parent. A child's `IFLA_LINK` is its parent's index.
#[test]
fn a_child_has_a_lower_netdev() {
    let header = |index: u32| {
        let mut header = vec![0; HEADER];
        header[2..4].copy_from_slice(&32_u16.to_ne_bytes()); // ARPHRD_INFINIBAND
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header
    };
    let info = attribute(IFLA_LINKINFO, &ipoib(0x8001, 1, 0));
    let lower = attribute(5, &4_u32.to_ne_bytes());
    let link =
        |body: &[Vec<u8>]| links::parse(&body.concat(), Path::new("/nowhere")).expect("a netdev");
    let parent = link(&[header(4), info.clone()]);
    assert_eq!(
        (parent.kind.as_deref(), parent.child),
        (Some("ipoib"), None)
    );
    assert_eq!(parent.ipoib.map(|it| it.pkey), Some(Pkey(0x8001)));
    let child = link(&[header(9), lower, info]);
    let (pkey, mode) = (Pkey(0x8001), IpoibMode::Connected);
    assert_eq!(child.child, Some(Child::Ipoib { pkey, mode }));
    assert_eq!(child.lower, Some(4));
}

/// The request has no mode, because the kernel would release the rtnl lock to set a mode. The request has no MTU,
/// because the kernel takes the MTU from the port.
#[test]
fn a_child_is_requested_by_parent_and_partition() {
    let target = fs::File::open("/").expect("a descriptor");
    let new = NewChild {
        lower: 4,
        child: Child::Ipoib {
            pkey: Pkey(0x8001),
            mode: IpoibMode::Connected,
        },
        target: target.as_fd(),
        name: "rdma-0123456789",
        mtu: 65520,
    };
    let (body, request) = bytes(&new.request(0));
    assert_eq!(request, RTM_NEWLINK);
    let expected = [
        attribute(5, &4_u32.to_ne_bytes()),
        attribute(28, &target.as_raw_fd().to_ne_bytes()), // IFLA_NET_NS_FD
        attribute(3, b"rdma-0123456789\0"),
        attribute(
            IFLA_LINKINFO,
            &of_kind("ipoib\0", &attribute(1, &0x8001_u16.to_ne_bytes())),
        ),
    ];
    assert_eq!(body[HEADER..], expected.concat());
}

#[test]
fn a_change_is_requested_from_the_netdevs_kind() {
    for (message, kind, value) in [
        (set_mode(7, IpoibMode::Connected), 2, 1_u16),
        (set_mode(7, IpoibMode::Datagram), 2, 0),
        (set_umcast(7, true), 3, 1),
        (set_umcast(7, false), 3, 0),
    ] {
        let (body, request) = bytes(&message);
        assert_eq!(request, RTM_NEWLINK);
        assert_eq!(body[4..8], 7_u32.to_ne_bytes());
        let data = attribute(kind, &value.to_ne_bytes());
        let info = attribute(IFLA_LINKINFO, &of_kind("ipoib\0", &data));
        assert_eq!(body[HEADER..], info);
    }
}

#[test]
fn the_mode_is_written_where_there_is_a_file_for_it() {
    let sysfs = tempfile::tempdir().expect("a directory");
    let netdev = sysfs.path().join("class/net/ib0");
    fs::create_dir_all(&netdev).expect("a directory");
    let write = || write_mode(sysfs.path(), "ib0", IpoibMode::Connected);
    let missing = write().expect_err("no file");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    fs::write(netdev.join("mode"), "").expect("a file");
    write().expect("written");
    let written = fs::read_to_string(netdev.join("mode")).expect("a file");
    assert_eq!(written, "connected\n");
}

#[test]
fn a_ports_partitions_are_the_places_of_its_table_that_are_taken() {
    let sysfs = tempfile::tempdir().expect("a directory");
    let table = sysfs.path().join("class/infiniband/mlx5_0/ports/1/pkeys");
    let read = || partitions(sysfs.path(), "mlx5_0", 1);
    let missing = read().expect_err("no such device");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    fs::create_dir_all(&table).expect("a directory");
    for (place, key) in [("0", "0xffff\n"), ("1", "0x0001\n"), ("2", "0x0000\n")] {
        fs::write(table.join(place), key).expect("a file");
    }
    assert_eq!(read().expect("a table"), [Pkey(0x0001), Pkey(0xffff)]);
}
