// SPDX-License-Identifier: Apache-2.0
//! SIGKILL after every operation of ADD and of DEL. The next DEL, ADD or GC restores the host. These tests use veths;
//! tests of the lab use RDMA devices.

use integration::{
    Netns, Node, Snapshot, ipam,
    killed::{Around, Restorer, Sweep},
    plugin::rdma_cni,
    wait,
};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{fs, os::unix::process::ExitStatusExt};

fn sweep(node: &Node) -> Sweep<'_> {
    node.furnish();
    Sweep {
        host: &node.host,
        plugin: rdma_cni(),
        injector: env!("CARGO_BIN_EXE_fault-injector").into(),
        around: Around::All,
        cni_path: node.cni_path(),
        configuration: node.configuration(&["eth1", "eth2"]),
        before: Snapshot::of(&node.host),
    }
}

#[track_caller]
fn assert_restored(command: &str, restorer: Restorer) {
    let node = Node::with_rails(2);
    let operations = sweep(&node).run(command, &[restorer]);
    assert!(operations > 6, "{command} had only {operations} operations");
    assert!(
        node.records().is_empty(),
        "records were left: {:?}",
        node.records()
    );
}

#[test]
fn a_del_heals_a_killed_add() {
    assert_restored("ADD", Restorer::Del);
}

#[test]
fn an_add_heals_a_killed_add() {
    assert_restored("ADD", Restorer::Add);
}

#[test]
fn gc_heals_a_killed_add() {
    assert_restored("ADD", Restorer::Gc);
}

#[test]
fn a_del_heals_a_killed_del() {
    assert_restored("DEL", Restorer::Del);
}

#[test]
fn an_add_heals_a_killed_del() {
    assert_restored("DEL", Restorer::Add);
}

#[test]
fn gc_heals_a_killed_del() {
    assert_restored("DEL", Restorer::Gc);
}

/// Children with addresses, tables and rules, all in the pod.
#[test]
fn any_verb_removes_children_of_a_killed_verb() {
    for command in ["ADD", "DEL"] {
        let node = Node::with_rails(2);
        for rail in [0, 1] {
            let ips = json!([
                {"address": format!("10.9.{rail}.7/24"), "gateway": format!("10.9.{rail}.1")},
                {"address": format!("fd00:9:{rail}::7/64")},
            ]);
            let answer = json!({"ips": ips, "routes": [{"dst": "0.0.0.0/0"}]});
            node.ipam.answer(&format!("ADD.rdma{rail}"), &answer);
        }
        let mut sweep = sweep(&node);
        sweep.configuration["mode"] = "share".into();
        sweep.configuration["mtu"] = 1400.into();
        sweep.configuration["ipam"] = json!({"type": ipam::NAME});
        let operations = sweep.run(command, &[Restorer::Add, Restorer::Gc, Restorer::Del]);
        assert!(operations > 5, "{command} had only {operations} operations");
        assert!(node.records().is_empty(), "{:?}", node.records());
        let (given, taken) = (node.ipam.interfaces("ADD"), node.ipam.interfaces("DEL"));
        assert!(taken.len() >= given.len(), "{given:?} {taken:?}");
    }
}

/// Returns the names of the files in the state directory of attachments.
fn left(node: &Node) -> Vec<String> {
    let files = fs::read_dir(node.state().join("attachments/net"));
    let files = files.into_iter().flatten();
    let name = |file: fs::DirEntry| file.file_name().into_string().expect("UTF-8");
    let mut names: Vec<String> = files.map(|file| name(file.expect("a file"))).collect();
    names.sort();
    names
}

/// Runs `command` for container `a`. The kernel kills it (SIGXFSZ) when it writes its first file, a record.
fn killed_while_it_writes(node: &Node, command: &str, pod: &Netns) {
    let words = format!("ulimit -f 0; exec {}", rdma_cni().display());
    let call = node.invoke(command, "a", pod.path());
    let call = call.program("/bin/sh".as_ref()).argument("-c");
    let outcome = call
        .argument(&words)
        .input(&node.configuration(&["eth1"]))
        .run();
    let signal = outcome.status.signal();
    assert_eq!(signal, Some(Signal::SIGXFSZ as i32), "{outcome}");
    let files = left(node);
    assert!(files.contains(&"a@eth0.json.new".to_owned()), "{files:?}");
}

#[test]
fn the_next_verb_removes_what_was_written_of_a_record() {
    for killed in ["ADD", "DEL"] {
        for restorer in ["ADD", "DEL", "own DEL", "GC"] {
            let node = Node::with_rails(2);
            let before = Snapshot::of(&node.host);
            let (pod, other) = (node.pod("pod"), node.pod("other"));
            let configuration = node.configuration(&["eth1"]);
            if killed == "DEL" {
                node.add(&configuration, "a", &pod);
            }
            killed_while_it_writes(&node, killed, &pod);
            let others = node.configuration(&["eth2"]);
            match restorer {
                "ADD" => drop(node.add(&others, "b", &other)),
                "DEL" => node.del(&others, "b", &other),
                "own DEL" => node.del(&configuration, "a", &pod),
                _ => {
                    let mut gc = configuration.clone();
                    let valid = [json!({"containerID": "a", "ifname": "eth0"})];
                    gc["cni.dev/valid-attachments"] = json!(valid);
                    node.invoke("GC", "a", pod.path()).input(&gc).run().silent();
                }
            }
            let mut expected = vec![];
            if killed == "DEL" && restorer != "own DEL" {
                expected.extend(["a@eth0.json", "a@eth0.lock"]);
            }
            if restorer == "ADD" {
                expected.extend(["b@eth0.json", "b@eth0.lock"]);
            }
            assert_eq!(
                left(&node),
                expected,
                "{killed} was killed, then {restorer}"
            );
            node.del(&others, "b", &other);
            node.del(&configuration, "a", &pod);
            assert_eq!(left(&node), [""; 0], "{killed} was killed, then {restorer}");
            before.assert_restored(&node.host);
        }
    }
}

/// DEL of another attachment leaves a partly written record unchanged while its writer lives and holds the lock.
#[test]
fn a_record_that_is_being_written_is_left_alone() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    killed_while_it_writes(&node, "ADD", &pod);
    let files = left(&node);
    let lock = node.record("net", "a").with_extension("lock");
    let lock = fs::File::open(lock).expect("a lock");
    lock.lock().expect("nobody has it");
    let other = node.pod("other");
    node.del(&node.configuration(&["eth1"]), "b", &other);
    assert_eq!(left(&node), files);
}

/// The IPAM plugin of a killed ADD must end: if it continued after DEL, it would lease an address that no pod has.
#[test]
fn the_ipam_plugin_ends_with_a_killed_add() {
    let node = Node::with_rails(1);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.9.0.7/24"}]}));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    node.ipam.hold("ADD");
    let mut add = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .start();
    assert!(wait::within(wait::TIMEOUT, || node.ipam.calls().len() == 1));
    let process = add.await_child(ipam::NAME).expect("it is waiting");
    let status = format!("/proc/{process}/status");
    add.kill_alone();
    // the process that adopts the plugin may not reap it: a zombie has ended, too
    let is_over = |status: String| status.contains("State:\tZ");
    let ended = wait::within(wait::TIMEOUT, || {
        fs::read_to_string(&status).map_or(true, is_over)
    });
    assert!(ended, "the IPAM plugin goes on");
    assert!(add.ends_within(wait::TIMEOUT));
    node.ipam.release("ADD");
    node.del(&configuration, "a", &pod);
    let calls: Vec<String> = node.ipam.calls().into_iter().map(|it| it.command).collect();
    assert_eq!(calls, ["ADD", "DEL"]);
    before.assert_restored(&node.host);
    node.add(&configuration, "a", &pod);
    node.del(&configuration, "a", &pod);
    before.assert_restored(&node.host);
}
