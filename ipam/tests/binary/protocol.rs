// SPDX-License-Identifier: Apache-2.0
//! Tests of environment, versions, formats of results, and failures to write a result.

use super::node::{Node, RDMA_IPAM, call};
use serde_json::{Value, json};
use std::{fs::File, process::Command};

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn dual(node: &Node) -> Value {
    node.conf(json!({
        "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]],
        "routes": [
            {"dst": "0.0.0.0/0"},
            {"dst": "10.9.0.0/16", "gw": "10.77.0.1", "mtu": 1400, "advmss": 1360,
             "priority": 7, "table": 1000, "scope": 0},
        ],
    }))
}

#[test]
fn version_needs_nothing_but_the_command() {
    let bare = |input: Value| {
        ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
            .iter()
            .fold(call("VERSION", "", &input), |call, name| call.without(name))
    };
    assert_eq!(
        bare("".into()).result()["supportedVersions"],
        json!(VERSIONS)
    );
    let answer = bare(json!({"cniVersion": "0.4.0"})).result();
    assert_eq!(answer["cniVersion"], "0.4.0");
}

#[test]
fn people_get_version_and_help() {
    for (argument, beginning) in [
        ("--version", "rdma-ipam 0."),
        ("--help", "rdma-ipam is a CNI"),
    ] {
        let output = Command::new(RDMA_IPAM).arg(argument).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(beginning), "{text}");
    }
    let output = Command::new(RDMA_IPAM).arg("plan").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn every_version_has_its_shape() {
    for version in VERSIONS {
        let node = Node::new();
        let mut conf = dual(&node);
        conf["cniVersion"] = version.into();
        let mut expected = json!({
            "cniVersion": version,
            "ips": [
                {"address": "10.77.0.2/24", "gateway": "10.77.0.1"},
                {"address": "fd77::2/64", "gateway": "fd77::1"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.77.0.1"}],
            "dns": {},
        });
        if version < "1.0.0" {
            expected["ips"][0]["version"] = "4".into();
            expected["ips"][1]["version"] = "6".into();
        }
        if version == "1.1.0" {
            expected["routes"] = conf["ipam"]["routes"].clone();
        }
        assert_eq!(call("ADD", "a", &conf).result(), expected);
        let check = call("CHECK", "a", &conf);
        match version {
            "0.3.0" | "0.3.1" => check.fails(
                1,
                &format!("cniVersion {version} has no CHECK, which came with 0.4.0"),
            ),
            _ => check.ok(),
        }
        for verb in ["GC", "STATUS"] {
            conf["cni.dev/valid-attachments"] = json!([{"containerID": "a", "ifname": "eth0"}]);
            let verb_call = call(verb, "a", &conf);
            match version {
                "1.1.0" => verb_call.ok(),
                _ => assert_eq!(verb_call.error().0, 1),
            }
        }
        assert_eq!(node.leases(), ["10.77.0.2", "fd77::2"]);
        call("DEL", "a", &conf).ok();
        assert_eq!(node.leases(), [""; 0]);
        assert_eq!(node.notes(), [""; 0]);
    }
}

#[test]
fn a_version_that_is_not_spoken_is_refused() {
    let node = Node::new();
    let mut conf = dual(&node);
    conf["cniVersion"] = "0.2.0".into();
    assert_eq!(call("ADD", "a", &conf).error().0, 1);
    conf.as_object_mut().unwrap().remove("cniVersion");
    assert_eq!(call("ADD", "a", &conf).error().0, 1);
}

#[test]
fn the_environment_is_checked() {
    let node = Node::new();
    let conf = dual(&node);
    call("ADD", "a", &conf)
        .without("CNI_IFNAME")
        .without("CNI_CONTAINERID")
        .fails(4, "ADD needs CNI_CONTAINERID, CNI_IFNAME to be set");
    assert_eq!(call("ADD", "../a", &conf).error().0, 4);
    assert_eq!(call("FROB", "a", &conf).error().0, 4);
    assert_eq!(call("ADD", "a", &"{".into()).error().0, 6);
    assert_eq!(node.leases(), [""; 0]);
}

#[test]
fn del_is_repeatable_and_needs_neither_namespace_nor_sense() {
    let node = Node::new();
    let conf = dual(&node);
    call("DEL", "a", &conf).ok();
    assert!(!node.data_dir().exists(), "DEL made a directory");
    call("ADD", "a", &conf).result();
    // the ranges became wrong after ADD
    let broken = node.conf(json!({"ranges": "?", "from": 7, "strategy": "none"}));
    for _ in 0..2 {
        call("DEL", "a", &broken).without("CNI_NETNS").ok();
        assert_eq!(node.leases(), [""; 0]);
    }
}

#[test]
fn a_second_add_is_refused() {
    let node = Node::new();
    let conf = dual(&node);
    call("ADD", "a", &conf).result();
    call("ADD", "a", &conf).fails(
        100,
        "a eth0 already has 10.77.0.2, fd77::2: call DEL before another ADD",
    );
    call("ADD", "a", &conf).env("CNI_IFNAME", "rdma1").result();
    call("DEL", "a", &conf).ok();
    assert_eq!(node.leases(), ["10.77.0.3", "fd77::3"], "the other rail's");
    assert_eq!(
        call("ADD", "a", &conf).addresses(),
        ["10.77.0.4/24", "fd77::4/64"]
    );
}

#[test]
fn an_answer_that_cannot_be_given_holds_no_address() {
    let node = Node::new();
    let conf = dual(&node).to_string();
    let input = node.data_dir().with_file_name("input");
    std::fs::write(&input, conf).unwrap();
    let status = Command::new(RDMA_IPAM)
        .env_clear()
        .envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "a"),
            ("CNI_NETNS", "/x"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/x"),
        ])
        .stdin(File::open(&input).unwrap())
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .status()
        .unwrap();
    assert!(!status.success());
    assert_eq!(node.leases(), [""; 0]);
    assert_eq!(node.notes(), [""; 0]);
}

#[test]
fn dns_comes_from_resolv_conf() {
    let node = Node::new();
    let path = node.data_dir().with_file_name("resolv.conf");
    let conf = node.conf(json!({"subnet": "10.77.0.0/24", "resolvConf": path}));
    let (code, message) = call("ADD", "a", &conf).error();
    assert_eq!(code, 5);
    assert!(
        message.starts_with("ipam.resolvConf: cannot read "),
        "{message}"
    );
    assert_eq!(node.leases(), [""; 0]);
    std::fs::write(path, "nameserver 10.0.0.53\nsearch a b\n").unwrap();
    assert_eq!(
        call("ADD", "a", &conf).result()["dns"],
        json!({"nameservers": ["10.0.0.53"], "search": ["a", "b"]})
    );
}
