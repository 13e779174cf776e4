// SPDX-License-Identifier: Apache-2.0
//! A resource whose containers may lock more memory than the runtime allows, and have a limit of RDMA objects.

use crate::{Running, ids};
use integration::Machine;
use nix::sys::signal::Signal;
use rdma_device_plugin::chain::record::Record;
use serde_json::{Value, json};
use std::fs;

const NAME: &str = "rdma-device-plugin/container=rdma--hca:3";

/// Configuration with so many `ids` and `field` in its resource. The chain has a directory without networks.
fn configuration(machine: &Machine, ids: usize, field: &str) -> String {
    let networks = machine.path("no-networks");
    format!(
        r#"{{"cdi": true, "chain": {{"confDir": {networks:?}}},
            "resources": [{{"name": "rdma/hca", "kind": "shared", "count": {ids}{field}}}]}}"#
    )
}

/// Returns the content of the entry of the container with id 3.
#[track_caller]
fn edits(running: &Running) -> Value {
    let file = running
        .machine
        .path("cdi/rdma-device-plugin-container.json");
    let content: Value = serde_json::from_slice(&fs::read(file).expect("the file")).expect("JSON");
    content["devices"][0]["containerEdits"].clone()
}

#[test]
fn a_container_keeps_the_hook_that_it_was_promised() {
    let machine = Machine::with(&[crate::FIRST, crate::SECOND]);
    let with = configuration(
        &machine,
        8,
        r#", "memlock": "unlimited", "limits": {"objects": 100}"#,
    );
    let running = Running::on(machine, &with);
    running.has("rdma/hca", 0);
    let controllers = "sys/fs/cgroup/cgroup.controllers";
    fs::create_dir_all(running.machine.path("sys/fs/cgroup")).expect("made");
    running.machine.write(controllers, "cpu rdma\n");
    running.daemon.signal(Signal::SIGHUP);
    let running = running.listed("rdma/hca", 8);
    let own = ids(&["3"]);
    let answer = running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let names = &answer.container_responses[0].cdi_devices;
    assert!(names.iter().any(|it| it.name == NAME), "{names:?}");

    let start = || running.kubelet.before_start("rdma/hca", &own);
    let refused = start().expect_err("nothing can set the limits");
    let expected = "rdma-cni, which sets the limits of containers, is not installed";
    assert!(refused.message().contains(expected), "{refused}");

    let mut record = Record::default();
    record.withdrawn = true;
    record.bin_dir = Some("/opt/other/bin".into());
    record
        .write(&running.machine.path("state"))
        .expect("written");
    // another pod's
    let pods = running.machine.path("state/attachments/pods");
    fs::create_dir_all(&pods).expect("a directory");
    fs::write(pods.join("c1@eth0.json"), "{").expect("written");
    start().expect("it may");
    let state_dir = format!("--state-dir={}", running.machine.path("state").display());
    let hook = json!({
        "hookName": "createRuntime",
        "path": "/opt/other/bin/rdma-cni",
        "args": ["rdma-cni", "oci-hook", "--memlock=unlimited", "--rdma-objects=100", state_dir],
    });
    assert_eq!(edits(&running), json!({"hooks": [hook]}));

    // it runs on, and starts again
    running
        .machine
        .configure(&configuration(&running.machine, 9, ""));
    running.has("rdma/hca", 9);
    fs::remove_file(
        running
            .machine
            .path("cdi/rdma-device-plugin-container.json"),
    )
    .expect("removed");
    start().expect("it may");
    assert_eq!(edits(&running), json!({"hooks": [hook]}));
    // the next one is promised none
    let answer = running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let names = &answer.container_responses[0].cdi_devices;
    assert!(names.iter().all(|it| it.name != NAME), "{names:?}");
}
