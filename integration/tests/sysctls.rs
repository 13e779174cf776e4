// SPDX-License-Identifier: Apache-2.0
//! A move to a pod and back keeps each setting that the host has of a netdev below `/proc/sys/net`.

use integration::{Netns, Node};
use std::collections::BTreeMap;

const DIRECTORIES: [&str; 4] = ["ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh"];

/// Settings that the test leaves alone: the first removes all addresses, the second is the netdev's MTU, and the third can be
/// read only after it was set (docs/security.md names it).
const LEFT_ALONE: [&str; 3] = [
    "ipv6/conf/disable_ipv6",
    "ipv6/conf/mtu",
    "ipv6/conf/stable_secret",
];

/// All settings of `eth1` in `netns` that can be read, by table and name.
fn settings(netns: &Netns) -> BTreeMap<String, String> {
    let files = DIRECTORIES.map(|it| format!("/proc/sys/net/{it}/eth1"));
    let mut command = netns.command("grep");
    let output = command.args(["-r", ""]).args(files).output();
    let text = String::from_utf8(output.expect("it starts").stdout).expect("UTF-8");
    let setting = |line: &str| {
        let (file, value) = line.split_once(':').expect("a value");
        let key = file.replace("/proc/sys/net/", "").replace("eth1/", "");
        (key, value.to_owned())
    };
    let all = text.lines().map(setting);
    all.filter(|(key, _)| !LEFT_ALONE.contains(&&**key))
        .collect()
}

/// Sets each number in a file of its arguments to another value. The kernel refuses some values, and rounds times.
const CHANGE: &str = r#"
for file; do
    before=$(<"$file")
    for other in $((before + 1)) $((before + 5000)) $((before / 2)); do
        { echo "$other" >"$file"; } 2>/dev/null || continue
        [[ $(<"$file") == "$before" ]] || break
    done
done
true
"#;

#[test]
fn each_setting_of_a_netdev_survives_a_move() {
    let node = Node::with_rails(1);
    let defaults = settings(&node.host);
    let numbers = defaults.iter().filter(|(_, it)| it.parse::<i64>().is_ok());
    let files = numbers.map(|(key, _)| {
        let (directory, name) = key.rsplit_once('/').expect("a name");
        format!("/proc/sys/net/{directory}/eth1/{name}")
    });
    let mut change = node.host.command("bash");
    change.args(["-c", CHANGE, "bash"]).args(files);
    assert!(change.status().expect("it starts").success());
    let before = settings(&node.host);
    let changed = before.iter().filter(|(key, it)| defaults[*key] != **it);
    let changed = changed.count();
    assert!(changed > 100, "{changed} settings could be changed");

    let pod = node.pod("pod");
    let configuration = node.configuration(&["eth1"]);
    node.add(&configuration, "a", &pod);
    node.del(&configuration, "a", &pod);
    let after = settings(&node.host);
    let lost: Vec<String> = before
        .iter()
        .filter(|(key, value)| after.get(*key) != Some(value))
        .map(|(key, value)| format!("{key}: {value} is now {:?}", after.get(key)))
        .collect();
    assert!(lost.is_empty(), "{lost:#?}");
}
