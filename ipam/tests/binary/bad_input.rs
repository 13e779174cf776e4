// SPDX-License-Identifier: Apache-2.0
//! Tests of bad input: each kind has its own error, and nothing changes.

use super::node::{Node, apart, call, shell};
use serde_json::{Value, json};
use std::fs;

#[track_caller]
fn refused(ipam: Value, message: &str) {
    let node = Node::new();
    call("ADD", "a", &node.conf(ipam)).fails(7, message);
    assert!(!node.data_dir().exists(), "something was made");
}

#[test]
fn ranges() {
    let v4 = |fields: Value| {
        let mut range = json!({"subnet": "10.77.0.0/24"});
        let fields = fields.as_object().unwrap().clone();
        range.as_object_mut().unwrap().extend(fields);
        json!({"ranges": [[range]]})
    };
    refused(
        v4(json!({"rangeStart": "10.78.0.5"})),
        "ipam.ranges[0][0].rangeStart: \"10.78.0.5\" is not valid: must be an address of the subnet \
         10.77.0.0/24",
    );
    refused(
        v4(json!({"rangeEnd": "fd77::5"})),
        "ipam.ranges[0][0].rangeEnd: \"fd77::5\" is not valid: must be an address of the subnet \
         10.77.0.0/24",
    );
    refused(
        v4(json!({"rangeStart": "10.77.0.9", "rangeEnd": "10.77.0.5"})),
        "ipam.ranges[0][0].rangeEnd: \"10.77.0.5\" is not valid: must not be before rangeStart, \
         10.77.0.9",
    );
    refused(
        v4(json!({"gateway": "fd77::1"})),
        "ipam.ranges[0][0].gateway: \"fd77::1\" is not valid: must be an IPv4 address, as the subnet \
         is",
    );
    refused(
        v4(json!({"rangeStart": 5})),
        "ipam.ranges[0][0].rangeStart: 5 is not valid: must be a string",
    );
    refused(
        json!({"subnet": "10.77.0.5/24"}),
        "ipam.subnet: \"10.77.0.5/24\" is not valid: it has host bits set; the network is \
         10.77.0.0/24",
    );
    for (subnet, family, longest) in [
        ("10.77.0.0/31", "IPv4", 30),
        ("10.77.0.1/32", "IPv4", 30),
        ("fd77::/127", "IPv6", 126),
        ("fd77::1/128", "IPv6", 126),
    ] {
        refused(
            json!({"subnet": subnet}),
            &format!(
                "ipam.subnet: \"{subnet}\" is not valid: it is too small to assign addresses; the longest {family} prefix is /{longest}"
            ),
        );
    }
    refused(
        json!({"subnet": "10.77.0.0"}),
        "ipam.subnet: \"10.77.0.0\" is not valid: must be a network with its prefix length, such as 10.0.0.0/24 or \
         fd00::/64",
    );
    refused(
        json!({"ranges": [{"subnet": "10.77.0.0/24"}]}),
        "ipam.ranges[0]: {\"subnet\":\"10.77.0.0/24\"} is not valid: must be a list of ranges: a list \
         in a list",
    );
    refused(
        json!({"ranges": [[]]}),
        "ipam.ranges[0]: [] is not valid: must have at least one range",
    );
    refused(
        json!({"rangeStart": "10.77.0.5"}),
        "ipam.rangeStart: \"10.77.0.5\" is not valid: needs ipam.subnet, which is missing",
    );
    refused(
        json!({"rangeStart": "10.77.0", "ranges": [[{"subnet": "10.77.0.0/24"}]]}),
        "ipam.rangeStart: \"10.77.0\" is not valid: must be an address",
    );
}

#[test]
fn fields_without_their_subnet_are_passed_over_and_reported() {
    let node = Node::new();
    let ipam = json!({"rangeStart": "10.77.0.5", "rangeEnd": "", "ranges": [[{"subnet": "10.77.0.0/24"}]]});
    let outcome = call("ADD", "a", &node.conf(ipam)).run();
    assert!(outcome.success, "{outcome:?}");
    assert!(
        outcome.stderr.contains(
            "warn: ignoring ipam.rangeStart: without ipam.subnet it has no effect; move it into a range of \
             ipam.ranges"
        ),
        "{outcome:?}"
    );
    assert!(!outcome.stderr.contains("rangeEnd"), "{outcome:?}");
}

#[test]
fn ranges_together() {
    refused(
        json!({"ranges": [[{"subnet": "10.77.0.0/24"}, {"subnet": "10.77.0.0/25"}]]}),
        "ipam.ranges[0]: [\"10.77.0.0/24\",\"10.77.0.0/25\"] is not valid: 10.77.0.1-10.77.0.254 of \
         10.77.0.0/24 and 10.77.0.1-10.77.0.126 of 10.77.0.0/25 overlap; an address can be in one \
         range only",
    );
    refused(
        json!({"subnet": "10.77.0.0/24", "ranges": [[{"subnet": "10.77.0.128/25"}]]}),
        "ipam.ranges[0]: [\"10.77.0.128/25\"] is not valid: 10.77.0.1-10.77.0.254 of 10.77.0.0/24 \
         and 10.77.0.129-10.77.0.254 of 10.77.0.128/25 overlap; an address can be in one range only",
    );
    refused(
        json!({"ranges": [[{"subnet": "10.77.0.0/24"}, {"subnet": "fd77::/64"}]]}),
        "ipam.ranges[0]: [\"10.77.0.0/24\",\"fd77::/64\"] is not valid: a set assigns one \
         address, and has one family: move 10.77.0.0/24 and fd77::/64 into two sets",
    );
}

#[test]
fn words() {
    let with = |name: &str, value: Value| {
        let mut ipam = json!({"subnet": "10.77.0.0/24"});
        ipam[name] = value;
        ipam
    };
    refused(
        with("strategy", "random".into()),
        "ipam.strategy: \"random\" is not valid: must be one of sequential, stable",
    );
    refused(
        with("from", "master".into()),
        "ipam.from: \"master\" is not valid: must be one of ranges, parent",
    );
    refused(
        with("family", "inet6".into()),
        "ipam.family: \"inet6\" is not valid: must be one of ipv4, ipv6, both",
    );
    for family in ["ipv6", "both"] {
        refused(
            with("family", family.into()),
            &format!("ipam.family: \"{family}\" is not valid: the ranges have no IPv6 subnet"),
        );
    }
    refused(
        with("from", "parent".into()),
        "ipam.from: \"parent\" is not valid: the addresses come from the parent's prefixes: leave out ipam.ranges, \
         ipam.subnet and runtimeConfig.ipRanges, or leave out ipam.from",
    );
    refused(
        json!({}),
        "ipam.ranges is missing: set ipam.ranges or ipam.subnet, or set ipam.from to \"parent\"",
    );
    refused(
        with("routes", json!([{"gw": "10.77.0.1"}])),
        "ipam.routes[0].dst: null is not valid: must be a network with its prefix length",
    );
    refused(
        with("routes", json!([{"dst": "0.0.0.0/0", "gw": "fd77::1"}])),
        "ipam.routes[0].gw: \"fd77::1\" is not valid: must have the family of dst",
    );
    refused(
        with("dataDir", "networks".into()),
        "ipam.dataDir: \"networks\" is not valid: must be an absolute path",
    );
    let node = Node::new();
    let conf = json!({"cniVersion": "1.1.0", "name": "net"});
    call("ADD", "a", &conf).fails(
        7,
        "ipam is missing: set ipam.ranges, or ipam.from to \"parent\"",
    );
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    conf["name"] = "../x".into();
    assert_eq!(call("ADD", "a", &conf).error().0, 7);
}

#[test]
fn host_addresses() {
    let node = Node::new();
    let mut conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    for (value, expected) in [
        (json!("10.77.0.2"), "must be a list"),
        (json!({}), "must be a list"),
        (json!(["10.77.0.2", 5]), "must list addresses"),
        (json!(["10.77.0.2/24"]), "must list addresses"),
        (json!(["nic0"]), "must list addresses"),
    ] {
        let error = format!("hostAddresses: {value} is not valid: {expected}");
        conf["hostAddresses"] = value;
        call("ADD", "a", &conf).fails(7, &error);
        call("STATUS", "", &conf).fails(7, &error);
    }
    assert_eq!(node.leases(), [""; 0]);
}

#[test]
fn family_filters_the_ranges() {
    let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]);
    for (family, expected) in [
        ("ipv4", &["10.77.0.2/24"][..]),
        ("ipv6", &["fd77::2/64"]),
        ("both", &["10.77.0.2/24", "fd77::2/64"]),
    ] {
        let node = Node::new();
        let conf = node.conf(json!({"ranges": ranges, "family": family}));
        assert_eq!(call("ADD", "a", &conf).addresses(), expected);
    }
}

#[test]
fn exhausted() {
    let node = Node::new();
    let conf = node.conf(json!({"subnet": "10.77.0.0/29"}));
    for index in 0..5 {
        call("ADD", &format!("a{index}"), &conf).result();
    }
    let sentence = "no address is free in 10.77.0.1-10.77.0.6 of 10.77.0.0/29: 5 addresses are in use, and \
                    the others are never assigned";
    call("ADD", "b", &conf).fails(11, sentence);
    call("STATUS", "", &conf).fails(50, &format!("ADD cannot work: {sentence}"));
    call("DEL", "a3", &conf).ok();
    call("STATUS", "", &conf).ok();
    assert_eq!(call("ADD", "b", &conf).address(), "10.77.0.5");
    // dual stack: if one family has no free address, ADD assigns no address of the other family
    let conf =
        node.conf(json!({"ranges": [[{"subnet": "fd77::/64"}], [{"subnet": "10.77.0.0/29"}]]}));
    assert_eq!(call("ADD", "c", &conf).error().0, 11);
    assert_eq!(node.leases().len(), 5);
    assert_eq!(node.notes().len(), 5);
}

#[test]
fn a_data_directory_that_is_none() {
    let node = Node::new();
    fs::write(node.data_dir(), "").unwrap();
    let conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    let path = node.leases_dir();
    let error = format!(
        "cannot create {:?}: Not a directory (os error 20); ipam.dataDir must be a directory that \
         can be written",
        path.join("rdma-ipam/attachments")
    );
    call("ADD", "a", &conf).fails(5, &error);
    let error = error
        .replace("create", "write")
        .replace("/rdma-ipam/attachments", "");
    call("STATUS", "", &conf).fails(50, &format!("ADD cannot work: {error}"));
    assert_eq!(call("DEL", "a", &conf).error().0, 5);
}

#[test]
fn a_data_directory_that_cannot_be_written() {
    let node = Node::new();
    let conf = node.conf(json!({"subnet": "10.77.0.0/24"}));
    call("ADD", "a", &conf).result();
    apart(|| {
        let directory = node.data_dir();
        let directory = directory.display();
        shell(&format!(
            "mount --bind {directory} {directory}; mount -o remount,ro,bind {directory}"
        ));
        for (command, code) in [("ADD", 5), ("STATUS", 50), ("DEL", 5)] {
            let (observed, message) = call(command, "b", &conf).error();
            assert_eq!(observed, code);
            let reason = "Read-only file system (os error 30); ipam.dataDir must be a directory that \
                          can be written";
            assert!(message.ends_with(reason), "{message}");
        }
    });
    call("STATUS", "", &conf).ok();
}

#[test]
fn a_foreign_file_is_left_alone_and_reported() {
    let node = Node::new();
    let conf = node.conf(json!({"subnet": "10.77.0.0/29"}));
    node.write("notes.txt", "two words");
    node.write("10.77.0.2", "this is no lease");
    node.write("10.77.0.3", "");
    assert_eq!(call("ADD", "a", &conf).address(), "10.77.0.4");
    let mut gc = conf.clone();
    gc["cni.dev/valid-attachments"] = json!([{"containerID": "a", "ifname": "eth0"}]);
    // the first GC removes the empty lease
    let status = call("STATUS", "", &conf).run();
    assert!(
        status.stderr.contains("notes.txt\" is not a lease"),
        "{status:?}"
    );
    for (call, sees_empty) in [
        (call("DEL", "unknown", &conf), true),
        (call("GC", "", &gc), true),
        (call("GC", "", &gc), false),
    ] {
        let outcome = call.run();
        assert!(outcome.success, "{outcome:?}");
        let notes = format!("{:?} is not a lease", node.leases_dir().join("notes.txt"));
        assert!(outcome.stderr.contains(&notes), "{outcome:?}");
        assert!(
            outcome.stderr.contains("the file 10.77.0.2 is not a lease"),
            "{outcome:?}"
        );
        assert_eq!(
            outcome.stderr.contains("the lease of 10.77.0.3 is empty"),
            sees_empty
        );
    }
    assert_eq!(node.leases(), ["10.77.0.2", "10.77.0.4"]);
    assert!(node.leases_dir().join("notes.txt").exists());
}
