// SPDX-License-Identifier: Apache-2.0
//! Names of a netdev before and during an attachment. DEL restores the netdev whatever its names are.

use integration::{Netns, Node, Snapshot};
use serde_json::json;
use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

/// Gives `link` of `netns` a name of arbitrary bytes.
#[track_caller]
fn rename(netns: &Netns, link: &str, name: &[u8]) {
    netns.ip(&format!("link set dev {link} down"));
    let mut command = netns.command("ip");
    command.args(["link", "set", "dev", link, "name"]);
    let done = command.arg(OsStr::from_bytes(name)).status();
    assert!(done.expect("ip can be run").success(), "{name:?}");
}

#[test]
fn a_name_that_is_no_text_keeps_no_netdev_from_the_host() {
    let names: [&[u8]; 4] = [b"x\xff", b"\x80\x81", b"e\xcc", "é\u{7f}".as_bytes()];
    for name in names {
        let node = Node::with_rails(2);
        node.host.ip("address add 192.0.2.5/24 dev eth1");
        let before = Snapshot::of(&node.host);
        let configuration = node.configuration(&["eth1", "eth2"]);
        let pod = node.pod("pod");
        node.add(&configuration, "a", &pod);
        rename(&pod, "rdma0", name);
        node.del(&configuration, "a", &pod);
        before.assert_restored(&node.host);
        assert!(node.records().is_empty(), "{name:?}: {:?}", node.records());
    }
}

#[test]
fn a_name_that_is_no_text_on_the_host_disturbs_no_verb() {
    let node = Node::with_rails(1);
    let configuration = node.configuration(&["eth1"]);
    node.add_rail("odd");
    rename(&node.host, "odd", b"odd\xff");
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    assert!(pod.has_link("rdma0"));
    node.del(&configuration, "a", &pod);
    assert!(!pod.has_link("rdma0"));
    node.host.ip("address show dev eth1");
}

/// ADD refuses a netdev whose own name is not UTF-8: DEL could not restore the name, and no verb could read a record
/// with it.
#[test]
fn a_netdev_whose_own_name_is_no_text_is_not_attached() {
    let node = Node::with_rails(1);
    node.host.ip("link property add dev eth1 altname roce-a");
    rename(&node.host, "eth1", b"odd\xff");
    for mode in ["move", "share"] {
        let mut configuration = node.configuration(&["roce-a"]);
        configuration["mode"] = json!(mode);
        let pod = node.pod("pod");
        let call = node.invoke("ADD", "a", pod.path());
        let text = call.input(&configuration).run().failure().text();
        assert!(
            text.contains("is not UTF-8") && text.contains("rename the netdev"),
            "{text}"
        );
        assert!(node.records().is_empty());
        node.host.ip("link set dev roce-a down"); // fails if the rail no longer exists
    }
}

#[test]
fn a_device_that_is_chosen_by_an_alternative_name_returns_to_the_host_without_its_record() {
    let node = Node::with_rails(1);
    node.host.ip("link property add dev eth1 altname roce-a");
    let configuration = node.configuration(&["roce-a"]);
    let pod = node.pod("pod");
    node.add(&configuration, "a", &pod);
    fs::write(node.record("net", "a"), "{").expect("the record can be spoilt");
    node.del(&configuration, "a", &pod);
    let here = node.host.show("link show dev roce-a");
    assert_eq!(here.len(), 1, "{here:?}");
    assert_eq!(here[0]["altnames"], json!(["roce-a"]), "{here:?}");
    assert!(!node.record("net", "a").exists());
}
