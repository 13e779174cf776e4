// SPDX-License-Identifier: Apache-2.0
//! Tests of pods to which kubelet allocated nothing, and of a kubelet that does not answer.

use crate::kubelet::{Cluster, Devices};
use integration::{
    kubelet::pod_resources::{Get, Mood, pod as kubelet_pod},
    stopwatch::{Stopwatch, WITHOUT_A_LOCK},
};
use rdma_netns::RdmaMode;
use serde_json::{Value, json};
use std::{fs, time::Duration};

fn previous() -> Value {
    json!({
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:01", "extra": { "kept": 1 } }],
        "ips": [{ "address": "10.1.0.5/16", "interface": 0 }],
        "dns": {},
        "plugin.example/own": [1, 2],
    })
}

const NONE: Devices<'_> = &[("nvidia.com/gpu", &["GPU-1"])];

#[test]
fn nothing_is_opened_or_locked_or_restored_for_them() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", NONE);
    let mut config = cluster.config(json!({}));
    config["prevResult"] = previous();
    // ADD succeeds even without the namespace
    cluster.node.kernel.with(|world| world.unmount(&pod.netns));
    assert_eq!(cluster.add(&pod, &config).must_succeed(), previous());
    assert_eq!(cluster.node.kernel.observations(), 0);
    assert!(!cluster.state_dir().exists(), "something was written");
    assert_eq!(cluster.kubelet.take_requests(), ["Get"]);

    cluster.run("CHECK", &pod, &config).must_succeed();
    assert_eq!(cluster.kubelet.take_requests(), ["Get"]);
    cluster.kubelet.set_mood(Mood::Silent);
    cluster.del(&pod, &config).must_succeed();
    assert_eq!(cluster.kubelet.take_requests(), [] as [&str; 0], "by DEL");
}

/// DEL does not call IPAM for these pods. The node has no IPAM plugin.
#[test]
fn nothing_is_given_back_that_was_never_had() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", NONE);
    let mut config = cluster.config(json!({ "ipam": { "type": "not-installed" } }));
    for result in [previous(), json!({ "cniVersion": "1.1.0", "dns": {} })] {
        config["prevResult"] = result;
        cluster.add(&pod, &config).must_succeed();
        cluster.del(&pod, &config).must_succeed();
    }
    // if the result has a rail of `rdma-cni`, or if there is no result, DEL calls IPAM, but succeeds whatever IPAM
    // answers
    config["prevResult"]["interfaces"] = json!([{ "name": "rdma0" }]);
    cluster.del(&pod, &config).must_succeed();
    config.as_object_mut().unwrap().remove("prevResult");
    cluster.del(&pod, &config).must_succeed();
}

#[test]
fn first_plugin_prints_an_empty_result() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", NONE);
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let config = cluster.config(json!({ "cniVersion": version }));
        let result = cluster.add(&pod, &config).must_succeed();
        assert_eq!(result, json!({ "cniVersion": version, "dns": {} }));
    }
}

#[test]
fn list_serves_where_get_does_not() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let mut config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    config["prevResult"] = previous();
    for get in [Get::TurnedOff, Get::Unimplemented] {
        cluster.kubelet.set_get(get);
        let pod = cluster.pod("a", NONE);
        assert_eq!(cluster.add(&pod, &config).must_succeed(), previous());
        assert_eq!(cluster.kubelet.take_requests(), ["Get", "List"]);
        cluster.pod("a", &[("rdma/vf", &["0000:3b:00.2"])]);
        let result = cluster.add(&pod, &config).must_succeed();
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 2);
        cluster.del(&pod, &config).must_succeed();
        cluster.node.kernel.with(|world| world.unmount(&pod.netns));
        cluster.kubelet.take_requests();
    }
}

#[test]
fn a_check_of_a_pod_that_should_have_devices_fails_without_a_record() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", &[("rdma/vf", &["0000:3b:00.2"])]);
    let mut config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    config["prevResult"] = previous();
    let message = cluster.run("CHECK", &pod, &config).must_fail(999);
    assert!(
        message.contains("no record") && message.contains("0000:3b:00.2"),
        "{message}"
    );
}

#[test]
fn a_pod_that_kubelet_does_not_know_is_tried_again() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.node.pod("a");
    cluster.kubelet.set_pods(&[
        kubelet_pod("default", "b", &[NONE]),
        kubelet_pod("other", "a", &[NONE]),
    ]);
    let config = cluster.config(json!({}));
    for get in [Get::Works, Get::TurnedOff] {
        cluster.kubelet.set_get(get);
        let message = cluster.add(&pod, &config).must_fail(11);
        assert!(message.contains("default/a"), "{message}");
    }
}

#[test]
fn a_pod_without_a_name_needs_a_device() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", NONE);
    let config = cluster.config(json!({}));
    for args in [
        "",
        "IgnoreUnknown=1",
        "K8S_POD_NAME=a",
        "K8S_POD_NAMESPACE=;K8S_POD_NAME=a",
    ] {
        let message = cluster.run_with("ADD", &pod, &config, args).must_fail(7);
        for word in ["deviceID", "devices", "K8S_POD_NAMESPACE"] {
            assert!(message.contains(word), "{message}");
        }
    }
    let mut drop_in = config.clone();
    drop_in["type"] = "rdma".into();
    let message = cluster.add(&pod, &drop_in).must_fail(7);
    assert!(message.contains("deviceID"), "{message}");
    assert_eq!(cluster.kubelet.take_requests(), [] as [&str; 0]);
}

#[test]
fn a_kubelet_that_is_busy_or_restarts_is_waited_for() {
    let mut cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", NONE);
    let mut config = cluster.config(json!({}));
    config["prevResult"] = previous();
    cluster.kubelet.set_mood(Mood::Busy(3));
    cluster.add(&pod, &config).must_succeed();
    assert_eq!(cluster.kubelet.take_requests(), ["Get"; 4]);
    cluster
        .kubelet
        .set_mood(Mood::Slow(Duration::from_millis(300)));
    cluster.add(&pod, &config).must_succeed();

    cluster.kubelet.set_mood(Mood::Prompt);
    cluster.kubelet.go();
    let Cluster { node, kubelet } = cluster;
    let (kubelet, node) = (std::sync::Mutex::new(kubelet), node);
    let socket = config["podResourcesSocket"].clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            kubelet.lock().unwrap().come();
        });
        let args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=a";
        let answer = node.run_with("ADD", &pod, &config, args);
        assert_eq!(answer.must_succeed(), previous(), "{socket}");
    });
}

#[test]
fn a_temporary_error_is_code_11_at_once() {
    let mut cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", NONE);
    let config = cluster.config(json!({}));
    let fails = |cluster: &Cluster, word: &str| {
        let start = Stopwatch::start();
        let message = cluster.add(&pod, &config).must_fail(11);
        assert!(
            message.contains(word) && message.contains("kubelet"),
            "{message}"
        );
        assert!(message.contains("try again"), "{message}");
        let took = start.elapsed();
        assert!(took < WITHOUT_A_LOCK, "{word}: {took:?}");
    };
    cluster.kubelet.set_mood(Mood::Silent);
    fails(&cluster, "did not answer within 2s");
    cluster
        .kubelet
        .set_mood(Mood::Refusing(tonic::Code::Internal));
    fails(&cluster, "refused by the test");
    cluster.kubelet.go();
    fails(&cluster, "Connection refused");
}

#[test]
fn a_permanent_error_is_code_103_and_stops_no_node() {
    let mut cluster = Cluster::new(RdmaMode::Exclusive);
    let pod = cluster.pod("a", NONE);
    // a missing IPAM plugin is no error either, because most pods request no device
    let config = cluster.config(json!({ "ipam": { "type": "not-installed" } }));
    let status = |cluster: &Cluster| cluster.node.run("STATUS", None, &config);
    status(&cluster).must_succeed();
    cluster.kubelet.go();
    status(&cluster).must_succeed();

    cluster.kubelet.come();
    let no_service = Mood::Refusing(tonic::Code::Unimplemented);
    cluster.kubelet.set_mood(no_service);
    cluster.add(&pod, &config).must_fail(103);
    assert_eq!(cluster.kubelet.take_requests(), ["Get", "List"]);
    cluster.kubelet.go();

    let socket = cluster.kubelet.socket().to_owned();
    fs::remove_file(&socket).unwrap();
    let absent = |cluster: &Cluster, word: &str| {
        let message = cluster.add(&pod, &config).must_fail(103);
        assert!(message.contains(word), "{message}");
        assert!(message.contains("podResourcesSocket"), "{message}");
        status(cluster).must_succeed();
    };
    absent(&cluster, "No such file");
    fs::write(&socket, "").unwrap();
    absent(&cluster, "not a socket");
    fs::remove_file(&socket).unwrap();
    assert!(!cluster.state_dir().exists(), "STATUS wrote something");
    // a wrong value in the configuration fails every ADD
    let mut wrong = config.clone();
    wrong["mode"] = json!("shared");
    let message = cluster.node.run("STATUS", None, &wrong).must_fail(7);
    assert!(message.contains("shared"), "{message}");
}

#[test]
fn a_plan_by_hand_queries_kubelet_too() {
    let cluster = Cluster::new(RdmaMode::Exclusive);
    let config = cluster.config(json!({ "resources": ["rdma/vf"] }));
    for (devices, word) in [
        (NONE, "nothing: kubelet allocated no device"),
        (&[("rdma/vf", ["0000:3b:00.2"].as_slice())], "eth2"),
    ] {
        let pod = cluster.pod("a", devices);
        let text = cluster.plan(&pod, &config);
        assert!(text.contains(word), "{text}");
        cluster.node.kernel.with(|world| world.unmount(&pod.netns));
    }
    assert_eq!(cluster.node.records(), [] as [&str; 0]);
}
