// SPDX-License-Identifier: Apache-2.0
//! The kernel's netlink messages, and packets of neighbours. Their parsers read one attribute at a time.

use crate::assert_comes_back;
use rdma_netns::{Address, GeneralRule, Link, Route, Rule, Vf, linux::offline, netlink::Answers};
use std::path::Path;

/// One datagram, which may answer request 1.
///
/// # Panics
/// The answers have more bytes than the datagram.
pub fn datagram(input: &[u8]) {
    let mut answers = Answers::default();
    let _ = offline::datagram(input, 1, &mut answers);
    let bytes: usize = answers.bodies().map(|it| it.len() + 16).sum();
    assert!(bytes <= input.len());
}

/// A message of rtnetlink. The first byte chooses its type.
///
/// # Panics
/// A value differs after it is written to a record and read again.
pub fn rtnetlink(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else {
        return;
    };
    match kind % 8 {
        0 => {
            // a link whose name is not text is never recorded
            let link = offline::link(body, Path::new("/nonexistent"));
            if let Some(link) = link.filter(|it| it.name.index().is_none()) {
                assert_comes_back::<Link>(&link);
            }
            let _ = offline::asker(body);
        }
        1 => {
            // a VF is never recorded if its PF's name is not text
            let vf = offline::virtual_function(body, 0);
            if let Some(vf) = vf.filter(|it| it.pf.index().is_none()) {
                assert_comes_back::<Vf>(&vf);
            }
        }
        2 => {
            if let Some((_, address)) = offline::address(body) {
                assert_comes_back::<Address>(&address);
            }
        }
        3 => {
            let routes = offline::routes(body);
            assert!(routes.len() <= body.len());
            for (_, route) in routes {
                assert_comes_back::<Route>(&route);
            }
        }
        4 => {
            let (rule, general) = offline::rule(body);
            if let Some(rule) = rule {
                assert_comes_back::<Rule>(&rule);
            }
            if let Some(rule) = general {
                assert_comes_back::<GeneralRule>(&rule);
            }
        }
        5 => {
            let neighbour = offline::neighbour(body);
            assert!(neighbour.is_none_or(|it| it.mac.0.len() <= body.len()));
        }
        6 => {
            // the messages have equal length
            assert!(offline::nexthop(body.chunks(24), 1).len() <= body.len());
        }
        _ => {
            let number = offline::namespace_number(body);
            assert!(number.is_none_or(|it| !it.to_string().starts_with('-')));
        }
    }
}

/// A message of RDMA netlink.
///
/// # Panics
/// A name has a NUL byte, or a device number is out of range.
pub fn rdma(input: &[u8]) {
    let answer = offline::rdma(input);
    let resources = answer.resources.iter().map(|(name, _)| name);
    let names = resources
        .chain(&answer.kernel_users)
        .chain(answer.device.as_ref().map(|it| &it.name))
        .chain(answer.char_device.as_ref().map(|it| &it.name));
    for name in names {
        assert!(!name.contains('\0'));
    }
    if let Some(device) = answer.char_device {
        assert!(device.major < 1 << 12 && device.minor < 1 << 20);
    }
}

/// A message of SMC's netlink families, of devlink, or of a socket.
///
/// # Panics
/// The answer cannot be serialized, or a name in it has a NUL byte.
pub fn smc(input: &[u8]) {
    let answer = offline::smc(input);
    serde_json::to_string(&(&answer.ports, &answer.groups, &answer.connection)).expect("shown");
    assert!(answer.user_eid.is_none_or(|it| !it.contains('\0')));
    let reporter = offline::reporter(input);
    assert!(reporter.is_none_or(|it| !it.to_string().contains('\0')));
}

/// A packet of a neighbour, which may be any machine of the network, or a uevent. The first byte selects the kind.
///
/// # Panics
/// A packet's address is of the other IP family, or a uevent's path has a NUL byte.
pub fn packets(input: &[u8]) {
    const ARP: u16 = 0x0806;
    const IPV6: u16 = 0x86dd;
    let Some((kind, packet)) = input.split_first() else {
        return;
    };
    let protocol = match kind % 3 {
        0 => ARP,
        1 => IPV6,
        _ => {
            let event = offline::uevent(packet);
            assert!(event.is_none_or(|it| !it.path.contains('\0')));
            return;
        }
    };
    if let Some((address, _)) = offline::neighbour_packet(protocol, packet, &[2, 0, 0, 0, 0, 1]) {
        assert_eq!(address.is_ipv4(), protocol == ARP);
    }
}
