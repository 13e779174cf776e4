// SPDX-License-Identifier: Apache-2.0

use super::*;
use serde_json::{Value, json};

/// Returns a table of RoCE v1 and v2 GIDs, as mlx5 has them: each address has two indexes.
fn table(addresses: &[&str]) -> GidTable {
    let gids = addresses.iter().enumerate().flat_map(|(place, ip)| {
        let gid = |index: usize, kind: &str| json!({"index": index, "ip": ip, "kind": kind});
        [
            gid(2 * place, "ib-or-roce-v1"),
            gid(2 * place + 1, "roce-v2"),
        ]
    });
    let gids: Vec<Value> = gids.collect();
    serde_json::from_value(json!({"size": 256, "gids": gids})).expect("a table")
}

/// Returns a port with `addresses` in its GID table. `own` are the positions in `addresses` of the pod's addresses.
fn port(device: &str, addresses: &[&str], own: &[usize]) -> Port {
    let own = own.iter().map(|place| {
        let gid = addresses[*place].parse().expect("an address");
        (2 * *place as u32 + 1, gid)
    });
    let own: Vec<_> = own.collect();
    Port {
        device: device.to_owned(),
        index: own.first().map(|(index, _)| *index),
        own,
        shared: Some(Ok(table(addresses))),
    }
}

fn lines(ports: &[Port]) -> Result<String, String> {
    let variables = variables(ports).map_err(|why| why.to_string())?;
    let lines = variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    Ok(lines.collect::<Vec<_>>().join(" "))
}

#[test]
fn nccl_takes_the_first_of_the_family_and_range_with_roce_v2() {
    let range = |gid: &str, bits| {
        let gid = gid.parse().expect("an address");
        Some(Range { gid, bits })
    };
    let usual = [
        "fe80::1",
        "::ffff:10.0.0.1",
        "fd00:a0::1",
        "fd00:a0::5",
        "fd00:b0::5",
    ];
    for (addresses, family, range, expected) in [
        // without a range, NCCL chooses a GID of the node
        (&usual[..], Family::Ipv4, None, 3),
        (&usual, Family::Ipv6, None, 5),
        (&usual, Family::Ipv6, range("fd00:a0::5", 128), 7),
        (&usual, Family::Ipv6, range("fd00:a0::4", 126), 7),
        (&usual, Family::Ipv6, range("fd00:b0::", 32), 9),
        // no GID matches: NCCL then chooses index 0
        (&usual, Family::Ipv4, range("::ffff:10.1.0.0", 112), 0),
        (&["fe80::1", "fd00::1"], Family::Ipv4, None, 0),
        (&[], Family::Ipv6, None, 0),
        // NCCL does not check the family and the range of index 0
        (&["fd00::1", "fd00::2"], Family::Ipv6, None, 1),
        (
            &["fd00::1", "fd00::2"],
            Family::Ipv6,
            range("fd00::2", 128),
            3,
        ),
        (
            &["::ffff:10.0.0.1", "::ffff:10.0.0.2"],
            Family::Ipv4,
            None,
            1,
        ),
        // an index without a GID counts as IPv6
        (&["::ffff:10.0.0.1"], Family::Ipv6, None, 2),
        (&["::ffff:10.0.0.1", "fd00::1"], Family::Ipv6, None, 3),
    ] {
        let choice = Choice { family, range };
        let taken = choice.of(&table(addresses));
        assert_eq!(taken, expected, "{choice:?} of {addresses:?}");
    }
}

/// The ports have only RoCE v2 GIDs, as soft-RoCE has.
#[test]
fn the_first_place_is_left_for_a_routed_address_only_where_it_is_none() {
    let choice = Choice {
        family: Family::Ipv6,
        range: Some(Range {
            gid: "fd00::2".parse().expect("an address"),
            bits: 128,
        }),
    };
    for (first, expected) in [("fe80::1", 1), ("fd00::1", 0)] {
        let gid = |index, ip: &str| json!({"index": index, "ip": ip, "kind": "roce-v2"});
        let gids = json!([gid(0, first), gid(1, "fd00::2")]);
        let table = json!({"size": 1024, "gids": gids});
        let table = serde_json::from_value(table).expect("a table");
        assert_eq!(choice.of(&table), expected, "{first}");
    }
}

#[test]
fn an_index_that_all_ports_have_is_pinned() {
    let tables = ["fe80::1", "fd00:a0::1", "fd00:a0::5"];
    let one = port("mlx5_0", &tables, &[2]);
    let other = port("mlx5_1", &["fe80::2", "fd00:a1::1", "fd00:a1::5"], &[2]);
    assert_eq!(
        lines(std::slice::from_ref(&one)),
        Ok("NCCL_IB_GID_INDEX=5".to_owned())
    );
    assert_eq!(lines(&[one, other]), Ok("NCCL_IB_GID_INDEX=5".to_owned()));
    assert_eq!(lines(&[]), Ok(String::new()));
}

/// The usual case of a shared NIC: pods have addresses of the NIC's prefix.
#[test]
fn if_the_nodes_address_comes_first_only_the_reason_is_reported() {
    let one = ["fe80::1", "fd00:a0::1", "fd00:a0::5"];
    let two = ["fe80::2", "fd00:a1::1", "fd00:a1::9", "fd00:a1::5"];
    let ports = [port("mlx5_0", &one, &[2]), port("mlx5_1", &two, &[3])];
    assert_eq!(
        lines(&ports).expect_err("neither"),
        "NCCL gets no GID variables: no GID index is right on all rails of the pod (mlx5_0: 5, mlx5_1: 7), and by \
         address NCCL would take fd00:a0::1 at index 3 of mlx5_0, which is not the pod's; NCCL's own choice is right \
         if the pod has its own NICs, or addresses from a range that neither the node nor other pods use"
    );
}

#[test]
fn a_range_of_the_pods_addresses_without_an_earlier_one_is_reported() {
    // the pods' addresses have another prefix than the node's addresses
    let one = ["fe80::1", "fd00:a0::1", "fd77::8:5"];
    let two = [
        "fe80::2",
        "fd00:a1::1",
        "::ffff:10.0.0.1",
        "fd77::9:5",
        "fd77::9:6",
    ];
    let ports = [port("mlx5_0", &one, &[2]), port("mlx5_1", &two, &[3])];
    assert_eq!(
        lines(&ports),
        Ok(
            "NCCL_IB_ADDR_FAMILY=AF_INET6 NCCL_IB_ROCE_VERSION_NUM=2 NCCL_IB_ADDR_RANGE=fd77::8:0/111"
                .to_owned()
        )
    );
    // the pod's second address on each port is an IPv4 address. With the family of the first addresses, NCCL would
    // choose the node's GID
    let one = [
        "fe80::1",
        "fd00:a0::1",
        "::ffff:192.0.2.1",
        "fd00:a0::5",
        "::ffff:10.7.0.5",
    ];
    let two = ["fe80::2", "::ffff:10.7.1.5", "fd00:a1::6"];
    let ports = [port("mlx5_0", &one, &[3, 4]), port("mlx5_1", &two, &[2, 1])];
    assert_eq!(
        lines(&ports),
        Ok(
            "NCCL_IB_ADDR_FAMILY=AF_INET NCCL_IB_ROCE_VERSION_NUM=2 NCCL_IB_ADDR_RANGE=10.7.0.0/23"
                .to_owned()
        )
    );
}

/// Every range with the pod's GIDs of both rails also contains a GID of another pod.
#[test]
fn another_pods_address_that_comes_first_is_not_taken_for_the_pods() {
    let one = ["fe80::1", "fd77::8:4", "fd77::8:5"];
    let two = ["fe80::2", "fd77::9:5"];
    let mut ports = [port("mlx5_0", &one, &[2]), port("mlx5_1", &two, &[1])];
    let why = lines(&ports).expect_err("neither");
    assert!(
        why.contains("take fd77::8:4 at index 3 of mlx5_0, which is not the pod's"),
        "{why}"
    );
    // the other pod has ended, and the next pod's GID gets the free index
    if let Some(Ok(table)) = &mut ports[0].shared {
        table.gids.retain(|gid| gid.ip.segments()[6..8] != [8, 4]);
    }
    let why = lines(&ports).expect_err("neither");
    assert!(
        why.contains(
            "NCCL would take the next pod's GID, because index 2 of mlx5_0 is free, and lower than the pod's 5"
        ),
        "{why}"
    );
    // a moved device has no GIDs of other pods in its table
    ports[0].shared = None;
    assert!(lines(&ports).is_ok());
}

/// Pods on two VLANs of one NIC can have one address, and share the NIC's GID table.
#[test]
fn another_pods_gid_with_the_pods_address_is_not_the_pods() {
    let one = port("mlx5_0", &["fe80::1", "fd00::5", "fd00::5"], &[2]);
    let other = port("mlx5_1", &["fe80::1", "fd00::6"], &[1]);
    let why = lines(&[one, other]).expect_err("no variables");
    let words = "NCCL would take fd00::5 at index 3 of mlx5_0, which is not the pod's";
    assert!(why.contains(words), "{why}");
}

/// A bond has failed over since ADD, and the kernel has set its GIDs again, at other indexes.
#[test]
fn a_gid_with_another_index_since_add_is_the_pods() {
    let mut one = port("mlx5_0", &["fe80::1", "fd77::8:5"], &[1]);
    let other = port("mlx5_1", &["fe80::2", "fe80::3", "fd77::9:5"], &[2]);
    let before = lines(&[one.clone(), other.clone()]);
    one.own[0].0 = 7;
    assert!(before.is_ok(), "{before:?}");
    assert_eq!(lines(&[one, other]), before);
}

#[test]
fn ports_of_infiniband_and_such_that_are_not_known() {
    let one = port("mlx5_0", &["fe80::1", "fd77::8:5"], &[1]);
    let two = port("mlx5_1", &["fe80::2", "fe80::3", "fd77::9:5"], &[2]);
    let infiniband = Port {
        index: Some(0),
        own: vec![],
        shared: Some(Err("nobody looks".to_owned())),
        ..port("mlx5_2", &[], &[])
    };
    let of_ethernet = lines(&[one.clone(), two.clone()]);
    assert!(of_ethernet.is_ok(), "{of_ethernet:?}");
    assert_eq!(
        lines(&[one.clone(), two.clone(), infiniband.clone()]),
        of_ethernet
    );
    assert_eq!(
        lines(&[infiniband.clone(), infiniband]),
        Ok("NCCL_IB_GID_INDEX=0".to_owned())
    );
    let without = Port {
        index: None,
        ..port("mlx5_2", &["fe80::1"], &[])
    };
    let why = lines(&[one.clone(), without]).expect_err("neither");
    assert!(
        why.contains("(mlx5_0: 3, mlx5_2: none)") && why.contains("mlx5_2 has no GID of AF_INET6"),
        "{why}"
    );
    let unknown = Port {
        shared: Some(Err("the GIDs of mlx5_1 cannot be read".to_owned())),
        ..two
    };
    let why = lines(&[one, unknown]).expect_err("neither");
    assert!(why.contains("the GIDs of mlx5_1 cannot be read"), "{why}");
}
