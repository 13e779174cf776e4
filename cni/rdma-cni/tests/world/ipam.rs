// SPDX-License-Identifier: Apache-2.0
//! Tests of addresses from an IPAM plugin. The plugin is a shell script that answers from files.

use crate::{
    leases::install,
    node::{Node, Pod, name},
};
use attachments::{Key, Store};
use fake_kernel::Verdict;
use nix::errno::Errno;
use rdma_netns::{
    Op, RdmaMode, Route,
    link::{IFA_F_NODAD, MAIN_TABLE},
};
use serde_json::{Value, json};
use std::{
    fs, thread,
    time::{Duration, SystemTime},
};

const SCRIPT: &[u8] = br#"#!/bin/sh
echo "$CNI_COMMAND $CNI_IFNAME" >> "$0.log"
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_ARGS" >> "$0.args"
cat > /dev/null
if [ -e "$0.$CNI_COMMAND.$CNI_IFNAME" ]; then
    echo '{"cniVersion":"1.1.0","code":50,"msg":"the range is exhausted"}'
    exit 1
fi
[ "$CNI_COMMAND" = ADD ] && cat "$0.$CNI_IFNAME.json"
exit 0
"#;

/// A node with an IPAM plugin named `stand-in`.
struct Served {
    node: Node,
    config: Value,
}

impl Served {
    fn new(mode: RdmaMode) -> Self {
        let node = Node::new(mode);
        install(&node, "stand-in", SCRIPT);
        let mut config = node.two_rails();
        config["ipam"] = json!({ "type": "stand-in" });
        for rail in [0, 1] {
            let answer = json!({
                "cniVersion": "1.1.0",
                "ips": [
                    { "address": format!("192.168.{rail}.7/24"), "gateway": format!("192.168.{rail}.1") },
                    { "address": format!("2001:db8:a{rail}::7/64") },
                ],
                "routes": [
                    { "dst": format!("172.16.{rail}.0/24") },
                    { "dst": "::/0", "gw": format!("2001:db8:a{rail}::1") },
                    { "dst": format!("2001:db8:b{rail}::/48"), "gw": format!("2001:db8:a{rail}::1") },
                    { "dst": format!("192.0.2.{rail}/32"), "gw": format!("192.168.{rail}.9"), "priority": 50, "mtu": 1300 },
                ],
            });
            fs::write(
                node.plugins.join(format!("stand-in.rdma{rail}.json")),
                answer.to_string(),
            )
            .unwrap();
        }
        Self { node, config }
    }

    fn refuses(&self, command: &str, rail: &str) {
        fs::write(
            self.node.plugins.join(format!("stand-in.{command}.{rail}")),
            "",
        )
        .unwrap();
    }

    fn no_longer_refuses(&self, command: &str, rail: &str) {
        fs::remove_file(self.node.plugins.join(format!("stand-in.{command}.{rail}"))).unwrap();
    }

    /// Returns the calls of the plugin since this function last ran.
    fn calls(&self) -> Vec<String> {
        let log = self.node.plugins.join("stand-in.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        text.lines().map(str::to_owned).collect()
    }
}

fn shown(node: &Node, pod: &Pod, link: &str) -> rdma_netns::Link {
    let netns = node.netns(pod);
    node.kernel
        .with(|world| world.link(netns, link).unwrap().clone())
}

#[test]
fn every_rail_has_what_it_was_given() {
    for mode in [RdmaMode::Exclusive, RdmaMode::Shared] {
        let Served { node, config } = &Served::new(mode);
        let pod = node.pod("a");
        let before = node.snapshot();
        let result = node.add(&pod, config).must_succeed();
        assert_eq!(result["ips"].as_array().unwrap().len(), 4);
        for rail in [0, 1] {
            let link = shown(node, &pod, &format!("rdma{rail}"));
            let given = link.addresses.iter().filter(|a| !a.automatic);
            let given: Vec<_> = given
                .map(|a| (format!("{}/{}", a.ip, a.prefix), a.flags))
                .collect();
            assert_eq!(
                given,
                [
                    (format!("192.168.{rail}.7/24"), 0),
                    (format!("2001:db8:a{rail}::7/64"), IFA_F_NODAD),
                ]
            );
            let main = |route: &&Route| route.table == MAIN_TABLE;
            assert_eq!(
                link.lasting_routes().filter(main).count(),
                4,
                "{:?}",
                link.routes
            );
            // the rail's table has the main table's routes, the networks of both addresses, and a default route by the
            // gateway of IPv6 or IPv4
            let own = link.routes.iter().filter(|it| it.table == 1000 + rail);
            assert!(own.count() >= 6, "{:?}", link.routes);
            assert!(link.addresses.iter().all(|address| !address.tentative));
        }
        let mut checked = config.clone();
        checked["prevResult"] = result;
        node.run("CHECK", Some(&pod), &checked).must_succeed();
        node.del(&pod, config).must_succeed();
        node.must_be(&before, "after DEL");
    }
}

#[test]
fn addresses_are_given_back_when_a_rail_gets_none() {
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let pod = node.pod("a");
    let before = node.snapshot();
    served.refuses("ADD", "rdma1");
    let message = node.add(&pod, config).must_fail(104);
    assert!(message.contains("exhausted"), "{message}");
    node.must_be(&before, "undone");
    assert_eq!(
        served.calls(),
        ["ADD rdma0", "ADD rdma1", "DEL rdma0", "DEL rdma1"]
    );
}

#[test]
fn addresses_are_given_back_when_any_change_is_refused() {
    let Served { node, config } = &Served::new(RdmaMode::Exclusive);
    node.add(&node.pod("a"), config).must_succeed();
    let changes = node.changes();
    for at in 1..=changes {
        let served = Served::new(RdmaMode::Exclusive);
        let (node, config) = (&served.node, &served.config);
        let pod = node.pod("a");
        let before = node.snapshot();
        node.script(move |number| match number == at {
            true => Verdict::Refuse(Errno::EIO),
            false => Verdict::Proceed,
        });
        node.add(&pod, config).must_fail(106);
        node.must_be(&before, &format!("change {at}"));
        let calls = served.calls();
        let count = |what: &str| calls.iter().filter(|call| call.starts_with(what)).count();
        assert_eq!(count("DEL"), 2, "change {at}: {calls:?}");
        assert!([0, 2].contains(&count("ADD")), "change {at}: {calls:?}");
    }
}

#[test]
fn a_plugin_that_does_not_take_back_keeps_no_device() {
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let before = node.snapshot();
    let pod = node.pod("a");
    node.add(&pod, config).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    served.refuses("DEL", "rdma0");
    served.calls();
    node.del(&pod, config).must_fail(104);
    assert_eq!(served.calls(), ["DEL rdma0", "DEL rdma1"]);
    assert_eq!(before.differences(&node.snapshot()), [] as [&str; 0]);
    assert_eq!(node.records(), ["a@eth0.json", "a@eth0.lock"]);
    served.no_longer_refuses("DEL", "rdma0");
    node.del(&pod, config).must_succeed();
    node.must_be(&before, "after the second DEL");
}

#[test]
fn a_plugin_that_is_not_there_is_found_out_before_any_change() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let mut config = node.two_rails();
    config["ipam"] = json!({ "type": "nowhere" });
    node.add(&pod, &config).must_fail(104);
    assert_eq!(node.kernel.journal(), [] as [Op; 0]);
    node.must_be(&before, "refused");
}

/// The pod has ended. Its devices are restored, and another pod gets them, while IPAM still has the first pod's
/// addresses. The first pod's DEL releases the addresses, and does not touch the other pod.
#[test]
fn addresses_that_are_not_taken_back_hold_no_device() {
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let other = node.pod("b");
    let before = node.snapshot();
    let old = node.pod("a");
    node.add(&old, config).must_succeed();
    node.kernel.with(|world| world.unmount(&old.netns));
    served.refuses("DEL", "rdma0");
    node.add(&other, config).must_succeed();
    let held = node.snapshot();
    served.no_longer_refuses("DEL", "rdma0");
    served.calls();
    node.del(&old, config).must_succeed();
    assert_eq!(served.calls(), ["DEL rdma0", "DEL rdma1"]);
    assert_eq!(node.snapshot(), held);
    node.del(&other, config).must_succeed();
    node.must_be(&before, "after both");
}

/// The kernel refuses the last change of ADD, and the IPAM plugin does not release the addresses. The error says that
/// the devices are restored, and that IPAM may still have the addresses assigned.
#[test]
fn an_add_that_fails_reports_that_addresses_may_still_be_held() {
    let changes = {
        let served = Served::new(RdmaMode::Exclusive);
        let node = &served.node;
        node.add(&node.pod("a"), &served.config).must_succeed();
        node.changes()
    };
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let pod = node.pod("a");
    let before = node.snapshot();
    served.refuses("DEL", "rdma0");
    node.script(move |number| match number == changes {
        true => Verdict::Refuse(Errno::EIO),
        false => Verdict::Proceed,
    });
    let message = node.add(&pod, config).must_fail(107);
    for word in [
        "host is as before",
        "may still have addresses assigned",
        "the range is exhausted",
    ] {
        assert!(message.contains(word), "{message}");
    }
    assert!(!node.records().is_empty(), "nothing is left to DEL");
    served.no_longer_refuses("DEL", "rdma0");
    node.kernel.begin();
    node.del(&pod, config).must_succeed();
    node.must_be(&before, "DEL");
    assert_eq!(node.records(), [""; 0]);
}

/// A runtime passes a requested address to each plugin of the list (`podman run --ip`). The address may belong to the
/// pod's own network, or to one rail.
#[test]
fn an_address_that_the_pod_has_is_not_requested_for_a_rail() {
    let served = Served::new(RdmaMode::Exclusive);
    let node = &served.node;
    let pod = node.pod("a");
    let mut config = served.config.clone();
    config["prevResult"]["ips"] = json!([{"address": "10.88.0.50/16", "interface": 0}]);
    config["runtimeConfig"]["ips"] = json!(["10.88.0.50"]);
    let args = "K8S_POD_NAME=a;IP=10.88.0.50,192.168.0.7/24,203.0.113.9";
    node.run_with("ADD", &pod, &config, args).must_succeed();
    let log = fs::read_to_string(node.plugins.join("stand-in.args")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(
        lines,
        [
            "ADD a K8S_POD_NAME=a;IP=192.168.0.7/24,203.0.113.9",
            // the first rail has the other address
            "ADD a K8S_POD_NAME=a;IP=203.0.113.9",
        ]
    );
}

/// Recovery calls IPAM with the id and arguments of the ended pod, and not with those of this ADD.
#[test]
fn recovery_calls_ipam_with_the_old_pods_arguments() {
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let other = node.pod("b");
    let old = node.pod("a");
    let add = |pod: &Pod, args: &str| node.run_with("ADD", pod, config, args).must_succeed();
    add(&old, "K8S_POD_NAME=old;IP=10.0.0.1");
    node.kernel.with(|world| world.unmount(&old.netns));
    add(&other, "K8S_POD_NAME=other;IP=10.0.0.2");
    let log = fs::read_to_string(node.plugins.join("stand-in.args")).unwrap();
    let (of_old, of_other) = (
        "a K8S_POD_NAME=old;IP=10.0.0.1",
        "b K8S_POD_NAME=other;IP=10.0.0.2",
    );
    let count = |line: String| log.lines().filter(|it| **it == *line).count();
    assert_eq!(count(format!("ADD {of_old}")), 2, "{log}");
    assert_eq!(count(format!("DEL {of_old}")), 2, "{log}");
    assert_eq!(count(format!("ADD {of_other}")), 2, "{log}");
    assert_eq!(log.lines().count(), 6, "{log}");
}

#[test]
fn a_record_of_an_earlier_boot_does_not_wait_for_ipam() {
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let old = node.pod("a");
    node.add(&old, config).must_succeed();
    node.kernel.with(|world| world.reboot());
    served.refuses("DEL", "rdma0");
    served.calls();
    let before = node.snapshot();
    // the first ADD calls IPAM for the old pod, and IPAM refuses. An ADD during the pause after this refusal does not
    // call IPAM for the old pod, and an ADD after the pause does
    for (turn, first) in ["DEL rdma0", "ADD rdma0", "DEL rdma0"].iter().enumerate() {
        if turn == 2 {
            let record = fs::File::options().write(true).open(node.record_of(&old));
            let long_ago = SystemTime::now() - Duration::from_secs(600);
            record.unwrap().set_modified(long_ago).unwrap();
        }
        let pod = node.pod("b");
        node.add(&pod, config).must_succeed();
        let calls = served.calls();
        assert_eq!(calls[0], *first, "{turn}: {calls:?}");
        assert!(node.record_of(&old).exists());
        served.no_longer_refuses("DEL", "rdma0");
        node.del(&pod, config).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        served.refuses("DEL", "rdma0");
        served.calls();
    }
    node.del(&old, config).must_fail(104);
    served.no_longer_refuses("DEL", "rdma0");
    node.del(&old, config).must_succeed();
    node.must_be(&before, "after the DEL of the old pod");
}

/// The record's time is in the future: the clock was set back, or was wrong at a boot. The next try writes the record
/// again, and the usual pause follows.
#[test]
fn a_record_of_the_future_is_recovered_by_the_next_add_and_read_once() {
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let old = node.pod("a");
    node.add(&old, config).must_succeed();
    node.kernel.with(|world| world.reboot());
    served.refuses("DEL", "rdma0");
    let add = || {
        served.calls();
        let pod = node.pod("b");
        node.add(&pod, config).must_succeed();
        let first = served.calls()[0].clone();
        served.no_longer_refuses("DEL", "rdma0");
        node.del(&pod, config).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
        served.refuses("DEL", "rdma0");
        first
    };
    assert_eq!(add(), "DEL rdma0");
    let in_years = SystemTime::now() + Duration::from_secs(10 * 365 * 86_400);
    let record = fs::File::options().write(true).open(node.record_of(&old));
    record.unwrap().set_modified(in_years).unwrap();
    assert_eq!(add(), "DEL rdma0");
    assert_eq!(add(), "ADD rdma0");
}

/// The attachment's own DEL removes the record as soon as possible. A verb that gives up at the same time does not
/// write the record again.
#[test]
fn a_record_that_its_del_took_away_does_not_come_back() {
    let served = Served::new(RdmaMode::Exclusive);
    let (node, config) = (&served.node, &served.config);
    let store = Store::new(&node.state.path().join("state"));
    for turn in 0..10 {
        let old = node.pod("a");
        node.add(&old, config).must_succeed();
        node.kernel.with(|world| world.unmount(&old.netns));
        served.refuses("DEL", "rdma0");
        served.calls();
        let pod = node.pod("b");
        thread::scope(|scope| {
            scope.spawn(|| {
                while !node.plugins.join("stand-in.log").exists() {
                    thread::yield_now();
                }
                let key = Key {
                    network: "rails".to_owned(),
                    container: "a".to_owned(),
                    interface: name("eth0"),
                };
                let lock = loop {
                    if let Some(lock) = store.try_lock(&key).unwrap() {
                        break lock;
                    }
                };
                store.remove(&key, lock).unwrap();
            });
            node.add(&pod, config).must_succeed();
        });
        assert_eq!(node.records(), ["b@eth0.json", "b@eth0.lock"], "{turn}");
        served.no_longer_refuses("DEL", "rdma0");
        node.del(&pod, config).must_succeed();
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
}

/// The record is unreadable, and IPAM fails. The devices return to the host, and the record stays until IPAM has
/// released the addresses.
#[test]
fn a_corrupt_record_is_kept_until_addresses_are_given_back() {
    let served = Served::new(RdmaMode::Exclusive);
    let node = &served.node;
    let mut config = node.config(json!({ "devices": [{ "netdev": "eth2" }] }));
    config["ipam"] = served.config["ipam"].clone();
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    let record = node.record_of(&pod);
    let text = fs::read_to_string(&record).unwrap();
    let spoilt = &text[..text.len() / 2];
    fs::write(&record, spoilt).unwrap();
    served.refuses("DEL", "rdma0");
    served.calls();
    node.del(&pod, &config).must_fail(104);
    assert_eq!(served.calls(), ["DEL rdma0"]);
    let is_on_host = |world: &mut fake_kernel::World| {
        let host = fake_kernel::world::HOST;
        assert!(world.link(host, "eth2").is_some());
        assert_eq!(world.place_of_rdma("mlx5_2"), Some(host));
    };
    node.kernel.with(is_on_host);
    assert_eq!(fs::read_to_string(&record).unwrap(), spoilt);
    served.no_longer_refuses("DEL", "rdma0");
    node.del(&pod, &config).must_succeed();
    assert_eq!(served.calls(), ["DEL rdma0"]);
    node.kernel.with(is_on_host);
    assert_eq!(node.records(), ["a@eth0.corrupt"]);
    let aside = record.with_extension("corrupt");
    assert_eq!(fs::read_to_string(aside).unwrap(), spoilt);
}

/// DEL does not overwrite the unreadable record with data that it only assumes about the pod.
#[test]
fn a_corrupt_record_is_kept_until_the_devices_are_on_the_host() {
    let node = Node::new(RdmaMode::Exclusive);
    let config = node.config(json!({ "devices": [{ "netdev": "eth2" }] }));
    let pod = node.pod("a");
    node.add(&pod, &config).must_succeed();
    let record = node.record_of(&pod);
    let spoilt = "{ \"format\":";
    fs::write(&record, spoilt).unwrap();
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::MoveLink { .. } => Verdict::Refuse(Errno::EPERM),
        _ => Verdict::Proceed,
    });
    node.del(&pod, &config).must_fail(107);
    assert_eq!(fs::read_to_string(&record).unwrap(), spoilt);
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.records(), ["a@eth0.corrupt"]);
    let aside = record.with_extension("corrupt");
    assert_eq!(fs::read_to_string(aside).unwrap(), spoilt);
}
