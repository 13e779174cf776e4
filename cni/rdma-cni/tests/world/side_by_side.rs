// SPDX-License-Identifier: Apache-2.0
//! Tests of several pods: the effect of one pod's record, lease or file on the verbs of another.

use crate::{
    gate::alone,
    leases::{Leases, answer, install},
    node::{Answer, Node, Pod},
};
use cni_protocol::Input;
use integration::stopwatch::Stopwatch;
use rdma_netns::RdmaMode;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    time::{Duration, Instant},
};

/// Runs a verb of the attachment `ifname` of `pod`, which has the name `pod_name`.
fn run_as(
    node: &Node,
    (command, ifname): (&str, &str),
    (pod, pod_name): (&Pod, &str),
    config: &Value,
) -> Answer {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={pod_name}");
    let environment = [
        ("CNI_COMMAND", command),
        ("CNI_PATH", node.plugins.to_str().unwrap()),
        ("PATH", "/usr/bin:/bin"),
        ("CNI_CONTAINERID", &pod.container),
        ("CNI_IFNAME", ifname),
        ("CNI_NETNS", pod.netns.to_str().unwrap()),
        ("CNI_ARGS", &args),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let input = Input {
        arguments: vec![],
        environment: BTreeMap::from(environment),
    };
    let stdin = serde_json::to_vec(config).unwrap();
    let mut output = vec![];
    let _alone = alone();
    let _ = rdma_cni::run(input, &mut stdin.as_slice(), &mut output, &node.kernel);
    let value = serde_json::from_slice(&output).unwrap_or(Value::Null);
    Answer { value }
}

fn plan(node: &Node, pod: &Pod, config: &Value) -> String {
    let environment = [
        ("CNI_CONTAINERID", &*pod.container),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", pod.netns.to_str().unwrap()),
        ("CNI_PATH", node.plugins.to_str().unwrap()),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let input = Input {
        arguments: vec!["plan".into()],
        environment: BTreeMap::from(environment),
    };
    let stdin = serde_json::to_vec(config).unwrap();
    let mut output = vec![];
    let _ = rdma_cni::run(input, &mut stdin.as_slice(), &mut output, &node.kernel);
    String::from_utf8(output).unwrap()
}

fn edit(node: &Node, pod: &Pod, change: impl FnOnce(&mut Value)) {
    let path = node.record_of(pod);
    let mut record = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut record);
    fs::write(path, record.to_string()).unwrap();
}

/// Returns a node with NICs that pods get by a move, and with leases.
fn moving() -> Leases {
    Leases::on(Node::new(RdmaMode::Exclusive))
}

fn moved(leases: &Leases, netdevs: &[&str]) -> Value {
    let devices: Vec<Value> = netdevs.iter().map(|it| json!({ "netdev": it })).collect();
    leases.config(json!({ "devices": devices }))
}

/// Returns `hostAddresses` of each call of IPAM, sorted by their text.
fn host_addresses(leases: &Leases) -> Vec<Vec<String>> {
    let calls = leases.calls().into_iter();
    let addresses = calls.map(|call| {
        let ips = call.config["hostAddresses"].as_array().unwrap().iter();
        let mut ips: Vec<String> = ips.map(|ip| ip.as_str().unwrap().to_owned()).collect();
        ips.sort();
        ips
    });
    addresses.collect()
}

#[test]
fn ipam_gets_addresses_that_are_away_from_the_host() {
    let leases = moving();
    let node = &leases.node;
    let (first, second) = (node.pod("a"), node.pod("b"));
    node.add(&first, &moved(&leases, &["eth3"])).must_succeed();
    let third = ["10.0.3.5", "fd00:3::5"];
    let both = ["10.0.2.5", "10.0.3.5", "fd00:2::5", "fd00:3::5"];
    assert_eq!(host_addresses(&leases), [third]);
    // eth3 is in another pod
    node.run("STATUS", None, &moved(&leases, &["eth2"]))
        .must_succeed();
    assert_eq!(host_addresses(&leases), [third]);
    node.add(&second, &moved(&leases, &["eth2"])).must_succeed();
    assert_eq!(host_addresses(&leases), [both]);
    for pod in [&first, &second] {
        node.del(pod, &moved(&leases, &["eth2"])).must_succeed();
    }
    leases.calls();
    // each call also has the addresses of the pod's other NIC
    node.add(&first, &moved(&leases, &["eth2", "eth3"]))
        .must_succeed();
    assert_eq!(host_addresses(&leases), [both, both]);
}

#[test]
fn addresses_of_what_stays_on_the_host_are_not_away() {
    let leases = Leases::new(1);
    let node = &leases.node;
    for container in ["a", "b"] {
        let config = leases.config(json!({}));
        node.add(&node.pod(container), &config).must_succeed();
        assert_eq!(host_addresses(&leases), [[""; 0]]);
    }
}

#[test]
fn gc_keeps_the_leases_of_what_it_cannot_read() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let config = leases.config(json!({}));
    let names = ["newer", "corrupt", "missing", "good", "stale"];
    let pods = names.map(|container| node.pod(container));
    for (pod, host) in pods.iter().zip(30..) {
        leases.gives(&format!("{}.rdma0", pod.container), &answer(0, host));
        node.add(pod, &config).must_succeed();
    }
    let [newer, corrupt, missing, good, _] = &pods;
    edit(node, newer, |record| record["format"] = 99.into());
    fs::write(node.record_of(corrupt), "{").unwrap();
    fs::remove_file(node.record_of(missing)).unwrap();
    leases.calls();
    node.gc(&[newer, corrupt, missing, good], &config)
        .must_succeed();
    let calls = leases.calls();
    let what: Vec<&str> = calls.iter().map(|call| &*call.what).collect();
    assert_eq!(what, ["DEL stale rdma0", "GC"]);
    let valid = calls[1].config["cni.dev/valid-attachments"].clone();
    let is_valid = |container: &str, name: &str| {
        let it = json!({ "containerID": container, "ifname": name });
        valid.as_array().unwrap().contains(&it)
    };
    for container in &names[..4] {
        assert!(is_valid(container, "rdma0"), "{container}");
    }
    // if the number of rails is unknown, all names that the attachment can have are valid
    assert!(is_valid("newer", "rdma7") && !is_valid("good", "rdma1"));
    assert!(!is_valid("stale", "rdma0"));
}

/// GC cannot restore a rail whose record it cannot read, so the rail keeps its addresses. Otherwise another pod would
/// get the same addresses.
#[test]
fn gc_keeps_the_leases_of_what_it_cannot_restore() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let config = leases.config(json!({}));
    let names = ["newer", "corrupt", "stale"];
    let pods = names.map(|container| node.pod(container));
    for (pod, host) in pods.iter().zip(30..) {
        leases.gives(&format!("{}.rdma0", pod.container), &answer(0, host));
        node.add(pod, &config).must_succeed();
    }
    let [newer, corrupt, _] = &pods;
    edit(node, newer, |record| record["format"] = 99.into());
    fs::write(node.record_of(corrupt), "{").unwrap();
    leases.calls();
    // the runtime lists no attachment any more
    assert_ne!(node.gc(&[], &config).code(), 0);
    let calls = leases.calls();
    let valid = calls.last().unwrap().config["cni.dev/valid-attachments"].clone();
    let is_valid = |container: &str, name: &str| {
        let it = json!({ "containerID": container, "ifname": name });
        valid.as_array().unwrap().contains(&it)
    };
    for container in ["newer", "corrupt"] {
        assert!(
            is_valid(container, "rdma0") && is_valid(container, "rdma7"),
            "{container}: {valid}"
        );
    }
    assert!(!is_valid("stale", "rdma0"), "{valid}");
}

/// The only rail has the name that the runtime gave to the attachment.
#[test]
fn gc_keeps_the_lease_of_a_rail_with_the_runtimes_name() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let mut config = leases.config(json!({}));
    config.as_object_mut().unwrap().remove("interfaceName");
    let pod = node.pod("a");
    leases.gives("eth0", &answer(0, 7));
    node.add(&pod, &config).must_succeed();
    fs::write(node.record_of(&pod), "{").unwrap();
    leases.calls();
    assert_ne!(node.gc(&[], &config).code(), 0);
    let calls = leases.calls();
    let valid = &calls.last().unwrap().config["cni.dev/valid-attachments"];
    let it = json!({ "containerID": "a", "ifname": "eth0" });
    assert!(valid.as_array().unwrap().contains(&it), "{valid}");
}

/// The attachments belong to one pod. The readable record of one attachment does not contain the other's rails.
#[test]
fn gc_keeps_the_leases_of_the_unreadable_one_of_two_attachments() {
    let leases = moving();
    let node = &leases.node;
    let pod = node.pod("a");
    let config = |netdev: &str, names: &str| {
        let mut config = moved(&leases, &[netdev]);
        config["interfaceName"] = names.into();
        config
    };
    leases.gives("second0", &answer(1, 7));
    leases.gives("first0", &answer(0, 7));
    node.add(&pod, &config("eth2", "first%d")).must_succeed();
    let second = config("eth3", "second%d");
    run_as(node, ("ADD", "net1"), (&pod, "p"), &second).must_succeed();
    fs::write(
        node.record_of(&pod).with_file_name("a@net1.json"),
        "no record",
    )
    .unwrap();
    leases.calls();
    let mut gc = second.clone();
    gc["cni.dev/valid-attachments"] = json!([
        { "containerID": "a", "ifname": "eth0" }, { "containerID": "a", "ifname": "net1" },
    ]);
    node.run("GC", None, &gc).must_succeed();
    let calls = leases.calls();
    let valid = calls[0].config["cni.dev/valid-attachments"].as_array();
    for name in ["first0", "second0"] {
        let it = json!({ "containerID": "a", "ifname": name });
        assert!(valid.unwrap().contains(&it), "{it} in {valid:?}");
    }
}

#[test]
fn the_del_of_a_refused_attachment_leaves_the_others_leases() {
    let leases = Leases::new(2);
    let node = &leases.node;
    let pod = node.pod("a");
    let config = leases.config(json!({}));
    let result = node.add(&pod, &config).must_succeed();
    let second =
        |command: &str, config: &Value| run_as(node, (command, "net1"), (&pod, "p"), config);
    let message = second("ADD", &config).must_fail(7);
    assert!(message.contains("rdma0"), "{message}");
    leases.calls();
    let mut chained = config.clone();
    chained["prevResult"] = result.clone();
    for config in [&config, &chained] {
        second("DEL", config).must_succeed();
        assert_eq!(leases.take_call_names(), [""; 0]);
    }
    assert_eq!(leases.held(), ["a@rdma0", "a@rdma1"]);
    leases.check(&pod, &config, &result).must_succeed();
}

#[test]
fn a_successor_with_the_same_address_keeps_no_del_waiting() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let before = node.snapshot();
    let config = leases.config(json!({}));
    let (old, new) = (node.pod("old"), node.pod("new"));
    node.add(&old, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&old.netns));
    // holds the old pod's lock, like a DEL that is killed after IPAM has released the address
    let lock = File::open(node.record_of(&old).with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let result = node.add(&new, &config).must_succeed();
    drop(lock);
    let started = Stopwatch::start();
    node.del(&old, &config).must_succeed();
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(leases.held(), ["new@rdma0"]);
    assert_eq!(leases.rails_files(), ["new"]);
    leases.check(&new, &config, &result).must_succeed();
    node.del(&new, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&new.netns));
    leases.must_be(&before, "after both");
}

const HANGING: &[u8] = br#"#!/bin/sh
echo "$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >> "$0.log"
case $CNI_COMMAND.$CNI_CONTAINERID in
DEL.stale*) exec sleep 60 ;;
ADD.*) echo "{\"cniVersion\":\"1.1.0\",\"ips\":[{\"address\":\"10.9.0.${CNI_CONTAINERID#*-}/24\"}]}" ;;
esac
"#;

/// Two pods with one rail each have ended, and IPAM does not release their addresses.
#[test]
fn an_ipam_that_hangs_costs_other_pods_little_and_once() {
    let leases = Leases::new(1);
    let node = &leases.node;
    install(node, "hanging", HANGING);
    let config = leases.config(json!({ "ipam": { "type": "hanging" } }));
    let stale = ["stale-1", "stale-2"].map(|container| node.pod(container));
    for pod in &stale {
        node.add(pod, &config).must_succeed();
    }
    for pod in &stale {
        node.kernel.with(|world| world.unmount(&pod.netns));
    }
    let add = |container: &str| {
        let pod = node.pod(container);
        let (started, stopwatch) = (Instant::now(), Stopwatch::start());
        node.add(&pod, &config).must_succeed();
        (started.elapsed(), stopwatch.elapsed())
    };
    let (first, second) = (add("live-3"), add("live-4"));
    let budget = Duration::from_secs(5);
    assert!(first.0 >= budget && first.1 < budget * 2, "{first:?}");
    assert!(second.1 < budget / 2, "{second:?}");
    for pod in &stale {
        assert!(node.record_of(pod).exists());
    }
    let log = fs::read_to_string(node.plugins.join("hanging.log")).unwrap();
    let dels = log.lines().filter(|line| line.starts_with("DEL"));
    assert!(dels.count() <= 2, "{log}");
}

/// The netdev is not on the host any more, and the record has the phase `attaching`.
#[test]
fn a_device_of_a_running_add_is_not_missing() {
    let leases = moving();
    let node = &leases.node;
    let (busy, other) = (node.pod("a"), node.pod("b"));
    let config = node.one_rail();
    let by_name = node.config(json!({ "devices": [{ "netdev": "eth2" }] }));
    node.add(&busy, &config).must_succeed();
    edit(node, &busy, |record| record["phase"] = "attaching".into());
    let lock = File::open(node.record_of(&busy).with_extension("lock")).unwrap();
    lock.lock().unwrap();
    let before = node.snapshot();
    for config in [&config, &by_name] {
        node.run("STATUS", None, config).must_succeed();
        for message in [
            plan(node, &other, config),
            node.add(&other, config).must_fail(101),
        ] {
            assert!(message.contains("in use by container a"), "{message}");
        }
        let own = plan(node, &busy, config);
        assert!(own.contains("container a (eth0"), "{own}");
    }
    assert_eq!(before.differences(&node.snapshot()), [""; 0]);
    drop(lock);
    node.add(&other, &by_name).must_succeed();
}

#[test]
fn a_directory_with_a_records_name_stops_no_other_pod() {
    let leases = Leases::new(1);
    let node = &leases.node;
    let config = leases.config(json!({}));
    let (pod, stale) = (node.pod("a"), node.pod("b"));
    leases.gives("b.rdma0", &answer(0, 8));
    let records = node.record_of(&pod).parent().map(Path::to_owned).unwrap();
    fs::create_dir_all(records.join("zz@eth0.json")).unwrap();
    fs::create_dir_all(records.join("a@zz0.lock")).unwrap();
    fs::write(records.join("a@zz0.json"), "{").unwrap();
    let result = node.add(&pod, &config).must_succeed();
    node.add(&stale, &config).must_succeed();
    node.run("STATUS", None, &config).must_succeed();
    leases.check(&pod, &config, &result).must_succeed();
    // GC reports the unreadable records, and removes the stale attachment
    let message = node.gc(&[&pod], &config).code();
    assert_ne!(message, 0);
    assert_eq!(leases.held(), ["a@rdma0"]);
    assert!(!node.record_of(&stale).exists());
    let unreadable = Pod {
        container: "zz".into(),
        ..pod.clone()
    };
    fs::remove_file(records.join("a@zz0.json")).unwrap();
    node.gc(&[&pod, &unreadable], &config).must_succeed();
    node.del(&pod, &config).must_succeed();
    assert_eq!(leases.held(), [""; 0]);
}

#[test]
fn two_attachments_of_a_pod_share_its_file() {
    let leases = moving();
    let node = &leases.node;
    let pod = node.pod("a");
    let pod = (&pod, "trainer-0");
    let config = |netdev: &str, names: &str| {
        node.config(json!({ "devices": [{ "netdev": netdev }], "interfaceName": names }))
    };
    let (first, second) = (config("eth2", "first"), config("eth3", "second"));
    run_as(node, ("ADD", "eth0"), pod, &first).must_succeed();
    run_as(node, ("ADD", "net1"), pod, &second).must_succeed();
    let rails = || -> Vec<(String, String)> {
        let file = leases.rails_file("ns_trainer-0").unwrap_or_default();
        let rails = file["rails"].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        rails
            .map(|rail| (text(&rail["ifname"]), text(&rail["interface"])))
            .collect()
    };
    let of = |ifname: &str, name: &str| (ifname.to_owned(), name.to_owned());
    assert_eq!(rails(), [of("eth0", "first"), of("net1", "second")]);
    run_as(node, ("DEL", "eth0"), pod, &first).must_succeed();
    assert_eq!(rails(), [of("net1", "second")]);
    run_as(node, ("ADD", "eth0"), pod, &first).must_succeed();
    run_as(node, ("DEL", "net1"), pod, &second).must_succeed();
    assert_eq!(rails(), [of("eth0", "first")]);
    // the pod is created again while its old sandbox ends
    let again = node.pod("b");
    run_as(node, ("ADD", "eth0"), (&again, "trainer-0"), &second).must_succeed();
    run_as(node, ("DEL", "eth0"), pod, &first).must_succeed();
    assert_eq!(rails(), [of("eth0", "second")]);
    let file = leases.rails_file("ns_trainer-0").unwrap();
    assert_eq!(file["containerID"], "b");
    run_as(node, ("DEL", "eth0"), (&again, "trainer-0"), &second).must_succeed();
    assert_eq!(leases.rails_files(), [""; 0]);
}
