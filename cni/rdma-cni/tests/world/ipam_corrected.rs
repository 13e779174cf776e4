// SPDX-License-Identifier: Apache-2.0
//! Tests of an IPAM plugin whose configuration was wrong at ADD and was corrected afterwards. DEL succeeds, and IPAM
//! releases all assigned addresses.

use crate::{
    leases::install,
    node::{Node, Pod},
};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{NetnsSide, Op, RdmaMode};
use serde_json::{Value, json};
use std::fs;

/// A plugin that supports CNI 1.0.0, as Debian's plugins do. If the file `$0.away` exists, the plugin refuses with the
/// code in this file. Its leases are files.
const SCRIPT: &[u8] = br#"#!/bin/sh
config=$(cat)
echo "$CNI_COMMAND $CNI_IFNAME" >> "$0.log"
refuse() {
    [ "$1" = words ] && { echo 'no such lease'; exit 1; }
    [ "$1" = death ] && kill -9 $$
    echo "{\"cniVersion\":\"1.0.0\",\"code\":$1,\"msg\":\"refused by the test\"}"
    exit 1
}
case $config in *'"cniVersion":"1.1.0"'*) refuse 1 ;; esac
[ -e "$0.away" ] && refuse "$(cat "$0.away")"
lease=$0.leases/$CNI_CONTAINERID@$CNI_IFNAME
case $CNI_COMMAND in
ADD)
    : > "$lease"
    echo '{"cniVersion":"1.0.0","ips":[{"address":"192.168.0.7/24"}]}'
    ;;
DEL) rm -f "$lease" ;;
esac
"#;

struct Old {
    node: Node,
    pod: Pod,
}

impl Old {
    fn new() -> Self {
        let node = Node::new(RdmaMode::Exclusive);
        for name in ["old", "other"] {
            install(&node, name, SCRIPT);
            fs::create_dir(node.plugins.join(format!("{name}.leases"))).unwrap();
        }
        let pod = node.pod("a");
        Self { node, pod }
    }

    fn config(&self, version: &str) -> Value {
        let fields = json!({ "deviceID": "0000:3b:00.2", "ipam": { "type": "old" } });
        let mut config = self.node.config(fields);
        config["cniVersion"] = version.into();
        config
    }

    /// Makes both plugins refuse every call with `code`. If `code` is `None`, they accept calls again.
    fn away(&self, code: Option<u32>) {
        for name in ["old", "other"] {
            let file = self.node.plugins.join(format!("{name}.away"));
            match code {
                Some(code) => fs::write(file, code.to_string()).unwrap(),
                None => drop(fs::remove_file(file)),
            }
        }
    }

    fn held(&self) -> usize {
        let leases = fs::read_dir(self.node.plugins.join("old.leases"));
        leases.unwrap().count()
    }
}

/// The plugin refuses ADD and DEL with version 1.1.0. `rdma-cni`'s DEL succeeds with this version, and with the
/// corrected version.
#[test]
fn a_failed_add_comes_to_its_end_before_and_after_the_correction() {
    for version in ["1.1.0", "1.0.0"] {
        let old = Old::new();
        let (node, pod) = (&old.node, &old.pod);
        let before = node.snapshot();
        node.add(pod, &old.config("1.1.0")).must_fail(104);
        assert_eq!(node.records(), ["a@eth0.json", "a@eth0.lock"]);
        node.del(pod, &old.config(version)).must_succeed();
        node.must_be(&before, version);
    }
}

/// The plugin was upgraded or downgraded, and no longer accepts the configuration of ADD.
#[test]
fn the_present_configuration_releases_addresses() {
    let old = Old::new();
    let (node, pod) = (&old.node, &old.pod);
    let before = node.snapshot();
    node.add(pod, &old.config("1.0.0")).must_succeed();
    let record = node.record_of(pod);
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace("\"1.0.0\"", "\"1.1.0\"")).unwrap();
    assert_eq!(old.held(), 1);
    // the plugin refuses both configurations, so it may still have an address
    node.del(pod, &old.config("1.1.0")).must_fail(104);
    assert_eq!(old.held(), 1);
    assert!(record.exists());
    node.del(pod, &old.config("1.0.0")).must_succeed();
    assert_eq!(old.held(), 0);
    node.must_be(&before, "after DEL");
}

/// The plugin of ADD refuses calls for a while. The plugin of the present configuration does not know the lease.
#[test]
fn another_plugins_success_keeps_the_addresses_recorded() {
    let old = Old::new();
    let (node, pod) = (&old.node, &old.pod);
    let before = node.snapshot();
    node.add(pod, &old.config("1.0.0")).must_succeed();
    let mut other = old.config("1.0.0");
    other["ipam"]["type"] = "other".into();
    for code in [1, 7, 11, 50, 999] {
        old.away(Some(code));
        let _ = fs::remove_file(node.plugins.join("other.away"));
        node.del(pod, &other).must_fail(104);
        // the lease is also kept if the plugin refuses for a reason other than its configuration
        node.del(pod, &old.config("1.0.0")).must_fail(104);
        assert_eq!(old.held(), 1, "{code}");
        assert!(node.record_of(pod).exists(), "{code}");
    }
    old.away(None);
    node.del(pod, &other).must_succeed();
    assert_eq!(old.held(), 0);
    node.must_be(&before, "after DEL");
}

/// IPAM refused the second rail. The first rail's address must still be released.
#[test]
fn one_refused_rail_forgets_no_other() {
    let old = Old::new();
    let (node, pod) = (&old.node, &old.pod);
    let before = node.snapshot();
    // the plugin refuses every call after its first ADD, so the second rail gets no address
    let script = String::from_utf8(SCRIPT.to_vec()).unwrap();
    let script = script.replace(": > \"$lease\"", ": > \"$lease\"; echo 11 > \"$0.away\"");
    install(node, "old", script.as_bytes());
    let mut config = node.two_rails();
    config["ipam"] = json!({ "type": "old" });
    config["cniVersion"] = "1.0.0".into();
    node.add(pod, &config).must_fail(104);
    assert_eq!(old.held(), 1);
    let message = node.del(pod, &config).must_fail(104);
    assert!(message.contains("refused by the test"), "{message}");
    assert_eq!(old.held(), 1);
    old.away(None);
    node.del(pod, &config).must_succeed();
    assert_eq!(old.held(), 0);
    node.must_be(&before, "after DEL");
}

/// ADD was killed during its call of IPAM, so it is unknown whether IPAM assigned an address.
#[test]
fn an_add_that_was_killed_may_have_been_given_something() {
    let old = Old::new();
    let (node, pod) = (&old.node, &old.pod);
    node.add(pod, &old.config("1.0.0")).must_succeed();
    let record = node.record_of(pod);
    let mut killed: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    killed["phase"] = "attaching".into();
    killed["rails"][0]["given"] = json!({ "addresses": [], "routes": [], "rules": [] });
    fs::write(&record, killed.to_string()).unwrap();
    old.away(Some(11));
    node.del(pod, &old.config("1.0.0")).must_fail(104);
    assert_eq!(old.held(), 1);
    assert!(record.exists());
    old.away(None);
    node.del(pod, &old.config("1.0.0")).must_succeed();
    assert_eq!(old.held(), 0);
}

/// IPAM refused an address at ADD, and a device could not return to the host. DEL still knows that IPAM refused.
#[test]
fn a_refusal_is_not_lost_with_an_incomplete_restoration() {
    let old = Old::new();
    let (node, pod) = (&old.node, &old.pod);
    let before = node.snapshot();
    old.away(Some(999));
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::MoveLink {
            from: NetnsSide::Pod,
            ..
        } => Verdict::Refuse(Errno::EBUSY),
        _ => Verdict::Proceed,
    });
    let config = old.config("1.0.0");
    node.add(pod, &config).must_fail(107);
    node.kernel.begin();
    // the first DEL restores the devices, and fails because IPAM refuses; the next DEL ignores this
    node.del(pod, &config).must_fail(104);
    node.del(pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

/// DEL is repeated after IPAM released all addresses. DEL still calls the plugin, because the record may have been
/// lost. It fails only if the refusal is temporary.
#[test]
fn without_a_record_no_refusal_keeps_a_pod() {
    let old = Old::new();
    let (node, pod) = (&old.node, &old.pod);
    let mut config = old.config("1.0.0");
    config["prevResult"] = json!({ "cniVersion": "1.0.0", "interfaces": [{ "name": "rdma0" }] });
    for code in [1, 2, 5, 7, 104, 999] {
        old.away(Some(code));
        node.del(pod, &config).must_succeed();
    }
    let away = node.plugins.join("old.away");
    // a program that is no CNI plugin: it exits with 1 and a text
    fs::write(&away, "words").unwrap();
    node.del(pod, &config).must_succeed();
    fs::write(&away, "death").unwrap();
    let message = node.del(pod, &config).must_fail(104);
    assert!(message.contains("signal: 9"), "{message}");
    old.away(Some(11));
    node.del(pod, &config).must_fail(104);
    old.away(None);
    node.del(pod, &config).must_succeed();
    config["ipam"]["type"] = "uninstalled".into();
    node.del(pod, &config).must_succeed();
    let log = fs::read_to_string(node.plugins.join("old.log")).unwrap();
    assert_eq!(log, "DEL rdma0\n".repeat(10));
    assert_eq!(node.records(), [""; 0]);
}
