// SPDX-License-Identifier: Apache-2.0
//! A verb that fails leaves the host in its earlier state.

use integration::{Node, Snapshot, ipam, tmpfs::Tmpfs, wait};
use serde_json::json;
use std::fs::{self, OpenOptions};

#[test]
fn an_existing_name_in_the_pod_is_an_error_before_any_change() {
    let node = Node::with_rails(2);
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1", "eth2"]);
    for taken in ["rdma0", "rdma1"] {
        let pod = node.pod("pod");
        pod.ip(&format!("link add name {taken} type veth peer name other"));
        let in_pod = Snapshot::of(&pod);
        let failure = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .failure();
        assert!(failure.text().contains(taken), "{failure:?}");
        in_pod.assert_restored(&pod);
        node.assert_restored(&before);
    }
}

#[test]
fn an_alternative_name_in_the_pod_takes_a_name_as_well() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    pod.ip("link add name other0 type veth peer name other1");
    pod.ip("link property add dev other0 altname rdma0");
    let configuration = node.configuration(&["eth1"]);
    let failure = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .failure();
    assert!(failure.text().contains("rdma0"), "{failure:?}");
    node.assert_restored(&before);
}

/// An operator counts errors in the log: an ADD that fails because of IPAM is one error, with `rdma-ipam` and with
/// another IPAM plugin.
#[test]
fn a_failed_add_is_one_error_in_the_log() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let mut configuration = node.configuration(&["eth1"]);
    let leases = node.directory().join("leases");
    configuration["ipam"] = json!({"type": "rdma-ipam", "from": "parent", "dataDir": leases});
    let call = node.invoke("ADD", "a", pod.path()).input(&configuration);
    let outcome = call.run();
    let text = outcome.error(104);
    assert!(text.contains("has no global IPv6 address"), "{text}");
    let own = outcome
        .stderr
        .lines()
        .filter(|line| line.starts_with("rdma-cni["));
    let errors = own.filter(|line| line.contains("has no global IPv6 address"));
    assert_eq!(errors.count(), 1, "{outcome}");
    // an IPAM plugin whose DEL fails as well adds one warning
    configuration["ipam"] = json!({"type": "host-local"});
    configuration["cniVersion"] = "1.0.0".into();
    let outcome = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run();
    outcome.error(104);
    let of = |level: &str| {
        let lines = outcome.stderr.lines();
        let lines = lines.filter(|line| line.contains(level) && line.contains("no IP ranges"));
        lines.count()
    };
    assert_eq!((of(": error: "), of(": warn: ")), (1, 1), "{outcome}");
}

#[test]
fn a_failing_ipam_plugin_restores_the_netdev_and_gets_its_del() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    node.ipam.fail("ADD", 11, "no address is free");
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(104);
    assert!(
        text.contains("no address is free"),
        "the plugin's own words are missing: {text}"
    );
    node.assert_restored(&before);
    assert_eq!(node.ipam.interfaces("DEL"), ["rdma0"]);
    assert!(!pod.has_link("rdma0"));
}

#[test]
fn a_failure_at_the_second_rail_restores_the_first_one() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1", "eth2"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    node.ipam
        .answer("ADD.rdma0", &json!({"ips": [{"address": "10.0.0.1/24"}]}));
    node.ipam.fail("ADD.rdma1", 11, "the second pool is empty");
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(104);
    assert!(text.contains("the second pool is empty"), "{text}");
    node.assert_restored(&before);
    let mut given_back = node.ipam.interfaces("DEL");
    given_back.sort();
    assert_eq!(given_back, ["rdma0", "rdma1"]);
}

#[test]
fn a_change_that_the_kernel_refuses_restores_all_rails() {
    let node = Node::with_rails(2);
    let pod = node.pod("pod");
    // The kernel permits no MTU of a macvlan above that of its lower netdev.
    node.host
        .ip("link add link eth2 name mac2 type macvlan mode bridge");
    node.host.ip("link set dev mac2 up");
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1", "mac2"]);
    configuration["mtu"] = 9000.into();
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(106);
    assert!(
        text.contains("mtu 9000"),
        "the operation is not reported: {text}"
    );
    node.assert_restored(&before);
}

#[test]
fn a_missing_ipam_plugin_and_a_nonsensical_answer_are_ipam_failures() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": "not-installed"});
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(104);
    assert!(text.contains("not-installed"), "{text}");
    node.assert_restored(&before);
    configuration["ipam"] = json!({"type": ipam::NAME});
    for answer in [
        json!([]),
        json!({}),
        json!({"ips": []}),
        json!({"ips": [{"address": "10.0.0.1"}]}),
        json!({"ips": [{"address": "10.0.0.1/33"}]}),
        json!({"ips": [{"address": "10.0.0.1/24"}], "routes": [{"dst": "everywhere"}]}),
    ] {
        node.ipam.answer("ADD", &answer);
        node.invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .error(104);
        node.assert_restored(&before);
        assert_eq!(
            node.ipam.calls().last().expect("a call").command,
            "DEL",
            "{answer}"
        );
    }
}

#[test]
fn a_result_that_nobody_can_read_is_a_failure_and_the_host_is_restored() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    let full = || {
        OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full")
    };
    let call = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .stdout(full());
    let outcome = call.run();
    assert!(!outcome.status.success(), "{outcome}");
    assert!(
        outcome.stderr.contains("standard output"),
        "the log does not say why: {outcome}"
    );
    node.assert_restored(&before);
    let outcome = node
        .bare()
        .env("CNI_COMMAND", "VERSION")
        .stdout(full())
        .run();
    assert!(!outcome.status.success(), "{outcome}");
    node.del(&configuration, "a", &pod);
    node.assert_restored(&before);
}

#[test]
fn a_read_only_state_directory_changes_nothing() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    let state = Tmpfs::mount(&node.state());
    state.make_read_only();
    let text = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(105);
    assert!(
        text.contains(node.state().to_str().expect("UTF-8")),
        "{text}"
    );
    node.assert_restored(&before);
    assert!(!pod.has_link("rdma0"));
}

#[test]
fn a_full_state_directory_changes_nothing() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1"]);
    let state = Tmpfs::mount(&node.state());
    state.fill();
    node.invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(105);
    node.assert_restored(&before);
    assert!(!pod.has_link("rdma0"));
    state.make_room();
    node.add(&configuration, "a", &pod);
    // rdma-cni can always restore the devices that it moved: this needs no disk space.
    state.fill();
    node.del(&configuration, "a", &pod);
    node.assert_restored(&before);
}

#[test]
fn a_state_directory_that_is_a_file_changes_nothing() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    let file = node.directory().join("a-file");
    fs::write(&file, "").expect("a file");
    for directory in [file.clone(), file.join("below")] {
        configuration["stateDir"] = directory.to_str().expect("UTF-8").into();
        node.invoke("ADD", "a", pod.path())
            .input(&configuration)
            .run()
            .error(105);
        before.assert_restored(&node.host);
    }
}

/// DEL of a pod without a record succeeds where `rdma-cni` cannot write a record. Each pod without an allocation is
/// such a pod: its ADD created no lock. If its DEL failed, the runtime would not call DEL of the plugins before
/// `rdma-cni`.
#[test]
fn a_pod_that_nothing_is_recorded_of_ends_where_nothing_can_be_recorded() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let mut configuration = node.configuration(&["eth1"]);
    let state = Tmpfs::of("size=64k,nr_inodes=1", &node.state());
    node.del(&configuration, "a", &pod);
    state.make_read_only();
    node.del(&configuration, "a", &pod);
    let file = node.directory().join("a-file");
    fs::write(&file, "").expect("a file");
    for directory in [file.clone(), file.join("below")] {
        configuration["stateDir"] = directory.to_str().expect("UTF-8").into();
        node.del(&configuration, "a", &pod);
    }
}

#[test]
fn an_ipam_plugin_is_not_called_when_nothing_can_be_recorded() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.0.0.1/24"}]}));
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    let state = Tmpfs::mount(&node.state());
    state.make_read_only();
    node.invoke("ADD", "a", pod.path())
        .input(&configuration)
        .run()
        .error(105);
    let leaked = node.ipam.interfaces("ADD").len() > node.ipam.interfaces("DEL").len();
    assert!(!leaked, "an address was requested and not given back");
}

/// `rdma-cni` can no longer lock the node, and undoes the ADD without a lock. Devices that remain in a failed pod do
/// more harm than a concurrent move of another pod.
#[test]
fn an_add_that_cannot_lock_the_node_any_more_is_undone_and_reports_it() {
    let node = Node::with_rails(1);
    let pod = node.pod("pod");
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    node.ipam.fail("ADD", 11, "no address is free");
    node.ipam.hold("ADD");
    let add = node
        .invoke("ADD", "a", pod.path())
        .input(&configuration)
        .start();
    wait::until("ADD waits for its IPAM plugin", || {
        !node.ipam.interfaces("ADD").is_empty()
    });
    let lock = node.state().join("lock");
    fs::remove_file(&lock).expect("the node's lock");
    fs::create_dir(&lock).expect("a directory instead of the lock");
    node.ipam.release("ADD");
    let outcome = add.wait();
    outcome.error(104);
    let warning = outcome
        .stderr
        .lines()
        .find(|it| it.contains("without the node's lock"));
    let path = lock.display().to_string();
    assert!(warning.is_some_and(|it| it.contains(&path)), "{outcome}");
    node.assert_restored(&before);
    assert!(!pod.has_link("rdma0"));
}

#[test]
fn a_killed_add_is_put_right_by_the_next_del_and_the_next_add() {
    let node = Node::with_rails(1);
    node.host.ip("address add 192.0.2.5/24 dev eth1");
    node.ipam
        .answer("ADD", &json!({"ips": [{"address": "10.0.0.1/24"}]}));
    let before = Snapshot::of(&node.host);
    let mut configuration = node.configuration(&["eth1"]);
    configuration["ipam"] = json!({"type": ipam::NAME});
    for restored_by_del in [true, false] {
        let (pod, next) = (node.pod("pod"), node.pod("next"));
        let calls = node.ipam.calls().len();
        node.ipam.hold("ADD");
        let mut running = node
            .invoke("ADD", "a", pod.path())
            .input(&configuration)
            .start();
        integration::wait::until("ADD waits for its IPAM plugin", || {
            node.ipam.calls().len() > calls
        });
        running.kill();
        assert!(!running.wait().status.success());
        node.ipam.release("ADD");
        if restored_by_del {
            node.del(&configuration, "a", &pod);
        } else {
            node.add(&configuration, "next", &next);
            assert_eq!(next.addresses("rdma0"), ["10.0.0.1/24"]);
            node.del(&configuration, "next", &next);
            node.del(&configuration, "a", &pod);
        }
        node.assert_restored(&before);
        assert!(!pod.has_link("rdma0"));
    }
}

/// Other pods of the node can use a rail that is back on the host, even if the other rail of the same record is not.
#[test]
fn a_rail_that_is_home_is_another_pods_to_have() {
    let node = Node::furnished();
    let before = Snapshot::of(&node.host);
    let configuration = node.configuration(&["eth1", "eth2"]);
    let [pod, other] = ["pod", "other"].map(|it| node.pod(it));
    node.add(&configuration, "a", &pod);
    node.host
        .ip("link add name eth2 type veth peer name usurper");
    let fails = || {
        let deletion = node.invoke("DEL", "a", pod.path()).input(&configuration);
        let text = deletion.run().error(107);
        assert!(text.contains("eth2"), "{text}");
    };
    fails();
    let first = node.configuration(&["eth1"]);
    node.add(&first, "b", &other);
    let owned = Snapshot::of(&other);
    fails();
    node.host.ip("link del dev eth2");
    node.del(&configuration, "a", &pod);
    owned.assert_restored(&other);
    node.del(&first, "b", &other);
    before.assert_restored(&node.host);
    assert!(node.records().is_empty());
}
