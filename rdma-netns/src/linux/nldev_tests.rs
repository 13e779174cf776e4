// SPDX-License-Identifier: Apache-2.0
//! Tests of decoding and encoding. Tests in the lab exchange whole messages with a kernel's RDMA netlink.

use super::*;
use netlink_packet_core::NetlinkSerializable;

fn bytes(request: &Request) -> Vec<u8> {
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    bytes
}

fn device() -> Vec<u8> {
    bytes(
        &request(command::GET)
            .number(attr::DEV_INDEX, 3)
            .text(attr::DEV_NAME, "mlx5_2")
            .number(attr::PORT_INDEX, 1)
            .with(
                attr::NODE_GUID,
                0x0011_2233_4455_6677_u64.to_ne_bytes().to_vec(),
            ),
    )
}

fn port() -> Vec<u8> {
    bytes(
        &request(command::PORT_GET)
            .number(attr::PORT_INDEX, 1)
            .with(attr::PORT_STATE, vec![4])
            .number(attr::NDEV_INDEX, 7),
    )
}

fn char_device() -> Vec<u8> {
    // 231:192, in the encoding of `new_encode_dev(MKDEV(231, 192))`
    bytes(
        &request(command::GET_CHARDEV)
            .text(attr::CHARDEV_NAME, "uverbs0")
            .with(attr::CHARDEV, (231_u64 << 8 | 192).to_ne_bytes().to_vec())
            .number(attr::UVERBS_DRIVER_ID, 19),
    )
}

/// Returns a CM id of the module `owner`, or of a process, that is bound to `ip`.
fn cm_id(owner: Option<&str>, ip: std::net::IpAddr) -> Vec<u8> {
    let mut socket = vec![0; 128]; // `struct sockaddr_storage`
    let (family, at, octets) = match ip {
        std::net::IpAddr::V4(ip) => (libc::AF_INET, 4, ip.octets().to_vec()),
        std::net::IpAddr::V6(ip) => (libc::AF_INET6, 8, ip.octets().to_vec()),
    };
    socket[..2].copy_from_slice(&(family as u16).to_ne_bytes());
    socket[at..at + octets.len()].copy_from_slice(&octets);
    let request = request(command::RES_CM_ID_GET);
    let request = match owner {
        Some(owner) => request.text(attr::RES_KERN_NAME, owner),
        None => request.number(28, 4711), // `RDMA_NLDEV_ATTR_RES_PID`
    };
    bytes(&request.with(attr::RES_SRC_ADDR, socket))
}

#[test]
fn the_kernels_own_users_of_a_device() {
    let ip = |text: &str| text.parse().expect("an IP address");
    let ids = [
        cm_id(Some("nvme_rdma"), ip("192.0.2.1")),
        cm_id(Some("rpcrdma"), ip("2001:db8::1")),
        // a module that listens at every address of the node
        cm_id(Some("rpcrdma"), ip("::")),
        cm_id(Some("nvmet_rdma"), ip("0.0.0.0")),
        cm_id(Some("smc"), ip("192.0.2.1")),
        // ib_write_bw, which is a process and no module
        cm_id(None, ip("192.0.2.1")),
    ];
    let entries = ids
        .into_iter()
        .fold(request(command::RES_CM_ID_GET), |request, id| {
            request.with(attr::RES_CM_ID_ENTRY | 0x8000, id)
        });
    let body = bytes(
        &request(command::RES_CM_ID_GET)
            .number(attr::DEV_INDEX, 3)
            .with(attr::RES_CM_ID | 0x8000, bytes(&entries)),
    );
    assert_eq!(parse_kernel_users(&body), ["nvme_rdma", "rpcrdma"]);
    assert_eq!(parse_kernel_users(&[]), [""; 0]);
}

fn resources() -> Vec<u8> {
    let entry = |name: &str, count: u64| {
        bytes(
            &request(command::RES_GET)
                .text(attr::RES_SUMMARY_ENTRY_NAME, name)
                .with(attr::RES_SUMMARY_ENTRY_CURR, count.to_ne_bytes().to_vec()),
        )
    };
    let summary = bytes(
        &request(command::RES_GET)
            .with(attr::RES_SUMMARY_ENTRY | 0x8000, entry("qp", 3))
            .with(attr::RES_SUMMARY_ENTRY, entry("ctx", 1)),
    );
    bytes(
        &request(command::RES_GET)
            .number(attr::DEV_INDEX, 3)
            .with(attr::RES_SUMMARY | 0x8000, summary),
    )
}

#[test]
fn requests_are_addressed_to_nldev() {
    let moved = request(command::SET)
        .number(attr::DEV_INDEX, 1)
        .number(attr::NET_NS_FD, 9);
    assert_eq!(moved.message_type(), 5122);
    assert_eq!(
        bytes(&moved),
        [8, 0, 1, 0, 1, 0, 0, 0, 8, 0, 68, 0, 9, 0, 0, 0]
    );
    // a string's length does not include its padding
    assert_eq!(
        bytes(&request(command::GET_CHARDEV).text(attr::CHARDEV_TYPE, "umad")),
        [9, 0, 69, 0, b'u', b'm', b'a', b'd', 0, 0, 0, 0]
    );
}

#[test]
fn answers_are_read() {
    assert_eq!(
        parse_device(&device()),
        Some(DeviceInfo {
            index: 3,
            name: "mlx5_2".to_owned(),
            node_guid: "0011:2233:4455:6677".to_owned(),
            parent: None,
            is_iwarp: false,
        })
    );
    let iwarp = request(command::GET)
        .number(attr::DEV_INDEX, 5)
        .text(attr::DEV_NAME, "erdma_0")
        .text(attr::DEV_PROTOCOL, "iw");
    assert!(parse_device(&bytes(&iwarp)).is_some_and(|it| it.is_iwarp));
    let sub_device = request(command::GET)
        .number(attr::DEV_INDEX, 4)
        .text(attr::DEV_NAME, "smi1")
        .text(PARENT_NAME, "mlx5_2");
    let parent = parse_device(&bytes(&sub_device)).and_then(|it| it.parent);
    assert_eq!(parent.as_deref(), Some("mlx5_2"));
    assert_eq!(
        parse_port(&port()),
        Some(PortInfo {
            number: 1,
            state: 4,
            netdev: Some(7)
        })
    );
    assert_eq!(
        parse_char_device(&char_device()),
        Some(CharDeviceInfo {
            name: "uverbs0".to_owned(),
            major: 231,
            minor: 192,
            driver: Some(19),
        })
    );
    let counts = [("qp".to_owned(), 3), ("ctx".to_owned(), 1)];
    assert_eq!(parse_resources(&resources()), counts);
    for (byte, mode) in [(0, RdmaMode::Exclusive), (1, RdmaMode::Shared)] {
        let body = bytes(&request(command::SYS_GET).with(attr::SYS_NETNS_MODE, vec![byte]));
        assert_eq!(parse_mode(&body), Some(mode));
    }
    assert_eq!(parse_mode(&[]), None, "Linux before 5.2");
}

#[test]
fn large_device_numbers() {
    let (major, minor) = (0xabc_u64, 0x1_2345_u64);
    let number = minor & 0xff | major << 8 | (minor & !0xff) << 12;
    let body = bytes(
        &request(command::GET_CHARDEV)
            .text(attr::CHARDEV_NAME, "umad300")
            .with(attr::CHARDEV, number.to_ne_bytes().to_vec()),
    );
    let found = parse_char_device(&body).expect("a device");
    assert_eq!(
        (u64::from(found.major), u64::from(found.minor)),
        (major, minor)
    );
}

#[test]
fn no_bytes_make_it_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let samples = [device(), port(), char_device(), resources()];
    for _ in 0..100_000 {
        let mut body = samples[random() % samples.len()].clone();
        for _ in 0..=random() % 4 {
            let at = random() % body.len();
            body[at] = random() as u8;
        }
        body.truncate(random() % (body.len() + 1));
        let _ = (
            parse_device(&body),
            parse_port(&body),
            parse_char_device(&body),
            parse_resources(&body),
            parse_mode(&body),
        );
    }
}

/// rxe and siw have the `node_type` and protocol of hardware, and a GUID that derives from their netdev's address. Only
/// the driver distinguishes them.
#[test]
fn software_is_recognized_by_its_driver() {
    // `enum rdma_driver_id`: not reported, unknown, mlx5, rxe, siw, erdma
    for (driver, is_hardware) in [
        (None, false),
        (Some(0), false),
        (Some(1), true),
        (Some(14), false),
        (Some(18), false),
        (Some(19), true),
    ] {
        let mut request = request(command::GET_CHARDEV)
            .text(attr::CHARDEV_NAME, "uverbs0")
            .with(attr::CHARDEV, (231_u64 << 8 | 192).to_ne_bytes().to_vec());
        if let Some(driver) = driver {
            request = request.number(attr::UVERBS_DRIVER_ID, driver);
        }
        let found = parse_char_device(&bytes(&request)).expect("a character device");
        assert_eq!(found.hardware().is_some(), is_hardware, "{driver:?}");
    }
}
