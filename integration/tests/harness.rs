// SPDX-License-Identifier: Apache-2.0
//! Tests of the test harness: a snapshot shows changes of the network state, and the stand-in for the runtime calls
//! plugins as libcni does.

use integration::{Attachment, Conflist, Invocation, Netns, Runtime, Snapshot, StandInIpam, ipam};
use serde_json::{Value, json};
use std::path::Path;
use tempfile::TempDir;

#[test]
fn a_snapshot_sees_every_change_and_no_other() {
    let netns = Netns::new("seen");
    netns.ip("link add name eth1 type veth peer name eth2");
    netns.ip("link set dev eth1 up");
    netns.ip("link set dev eth2 up");
    netns.ip("address add 192.0.2.1/24 dev eth1");
    netns.ip("-6 address add 2001:db8::1/64 dev eth1");
    let before = Snapshot::of(&netns);
    before.assert_restored(&netns);
    let changes = [
        ("link set dev eth1 mtu 1300", "link set dev eth1 mtu 1500"),
        (
            "link set dev eth1 txqueuelen 9",
            "link set dev eth1 txqueuelen 1000",
        ),
        (
            "link property add dev eth1 altname x",
            "link property del dev eth1 altname x",
        ),
        (
            "link set dev eth1 allmulticast on",
            "link set dev eth1 allmulticast off",
        ),
        (
            "address add 192.0.2.2/24 dev eth1",
            "address del 192.0.2.2/24 dev eth1",
        ),
        (
            "-6 address add 2001:db8::2/64 dev eth1 nodad",
            "-6 address del 2001:db8::2/64 dev eth1",
        ),
        (
            "route add 10.0.0.0/8 dev eth1 table 5",
            "route del 10.0.0.0/8 dev eth1 table 5",
        ),
        (
            "-6 route add fd00::/8 dev eth1",
            "-6 route del fd00::/8 dev eth1",
        ),
        (
            "rule add from 192.0.2.1 table 5",
            "rule del from 192.0.2.1 table 5",
        ),
    ];
    for (change, back) in changes {
        netns.ip(change);
        let now = Snapshot::of(&netns);
        assert_ne!(now, before, "not seen: {change}");
        assert!(
            before.difference(&now).lines().count() <= 6,
            "{}",
            before.difference(&now)
        );
        netns.ip(back);
        before.assert_restored(&netns);
    }
    netns.set_sysctl("ipv4/conf/eth1/rp_filter", "1");
    assert_eq!(
        before.difference(&Snapshot::of(&netns)),
        "- sysctl ipv4/conf/eth1/rp_filter: 0\n+ sysctl ipv4/conf/eth1/rp_filter: 1\n"
    );
}

#[test]
fn the_runner_does_as_libcni_does() {
    let directory = TempDir::new().expect("a temporary directory");
    let host = Netns::new("runner");
    let first = StandInIpam::install(directory.path());
    first.answer("ADD", &json!({"cniVersion": "1.1.0", "answered": true}));
    let plugin = |capabilities: Value| json!({"type": ipam::NAME, "capabilities": capabilities});
    let list = Conflist::new(
        "1.1.0",
        vec![
            plugin(json!({"deviceID": true})),
            plugin(json!({"other": true})),
        ],
    );
    let attachment = Attachment::new("a", Path::new("/run/netns/none"), "eth0")
        .of_pod("space", "pod")
        .with_capability("deviceID", json!("0000:01:00.0"));
    let cni_path = directory.path().to_str().expect("UTF-8");
    let runtime = Runtime::new(&host, cni_path, &directory.path().join("cache"));
    let result = runtime.add(&list, &attachment).expect("ADD");
    assert_eq!(result["answered"], true);
    runtime.check(&list, &attachment).expect("CHECK");
    runtime.del(&list, &attachment).expect("DEL");
    runtime.del(&list, &attachment).expect("DEL again");

    let calls = first.calls();
    let commands: Vec<&str> = calls.iter().map(|call| call.command.as_str()).collect();
    assert_eq!(
        commands,
        ["ADD", "ADD", "CHECK", "CHECK", "DEL", "DEL", "DEL", "DEL"]
    );
    let has = |call: usize, field: &str| calls[call].input.get(field).is_some();
    let previous: Vec<bool> = (0..8).map(|call| has(call, "prevResult")).collect();
    assert_eq!(
        previous,
        [false, true, true, true, true, true, false, false]
    );
    let granted: Vec<bool> = (0..8).map(|call| has(call, "runtimeConfig")).collect();
    // DEL calls the plugins from the last to the first
    assert_eq!(
        granted,
        [true, false, true, false, false, true, false, true]
    );
    assert_eq!(
        calls[0].input["runtimeConfig"],
        json!({"deviceID": "0000:01:00.0"})
    );
    for call in &calls {
        assert_eq!(
            (&call.input["name"], &call.input["cniVersion"]),
            (&json!("net"), &json!("1.1.0"))
        );
        assert_eq!(
            (call.container.as_str(), call.ifname.as_str()),
            ("a", "eth0")
        );
    }
}

#[test]
fn a_command_inside_sees_its_own_sysfs() {
    let host = Netns::new("sysfs");
    host.ip("link add name eth7 type veth peer name eth8");
    let shell = Invocation::new(&host, Path::new("/bin/ls"))
        .argument("/sys/class/net")
        .run();
    assert_eq!(
        shell.stdout.lines().collect::<Vec<_>>(),
        ["eth7", "eth8", "lo"]
    );
}

#[test]
fn namespaces_are_gone_when_they_are_dropped() {
    let path = {
        let netns = Netns::new("short");
        assert!(netns.path().exists());
        netns.path().to_owned()
    };
    assert!(!path.exists());
}
