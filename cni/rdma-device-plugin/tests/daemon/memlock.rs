// SPDX-License-Identifier: Apache-2.0
//! Tests of a resource whose containers may lock more memory than the runtime allows, and have a limit of RDMA
//! objects.

use crate::{Running, ids};
use integration::{Machine, wait};
use nix::sys::signal::Signal;
use rdma_device_plugin::chain::record::Record;
use rdma_resources::{
    LimitedContainers, RdmaLimits,
    limited::{FORMAT, LimitedContainer, boot_id},
};
use serde_json::{Value, json};
use std::{fs, path::Path};

const NAME: &str = "rdma-device-plugin/container=rdma--hca:3";

/// Returns a configuration whose resource has `ids` ids and the field `field`. The directory of the chain has
/// no networks.
fn configuration(machine: &Machine, ids: usize, field: &str) -> String {
    let networks = machine.path("no-networks");
    format!(
        r#"{{"cdi": true, "chain": {{"confDir": {networks:?}}},
            "resources": [{{"name": "rdma/hca", "kind": "shared", "count": {ids}{field}}}]}}"#
    )
}

/// Returns the edits of the first entry in the containers' CDI file.
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
    // an unreadable record prevents no start, because the hook does not depend on records
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

    // kubelet starts the container again
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
    // the next container has no promised limit
    let answer = running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let names = &answer.container_responses[0].cdi_devices;
    assert!(names.iter().all(|it| it.name != NAME), "{names:?}");
}

/// Files stand in for the kernel's rdma controller. A file keeps the written text.
#[test]
fn a_pod_is_limited_on_new_devices_and_until_its_container_ends() {
    const NONE: &str = "mlx5_0 hca_handle=max hca_object=max \n";
    const LIMITED: &str = "mlx5_0 hca_handle=max hca_object=3 \n";
    let machine = Machine::with(&[crate::FIRST, crate::SECOND]);
    let pod = Path::new("kubepods/poda");
    let of_container = machine.path("sys/fs/cgroup").join(pod).join("c1");
    fs::create_dir_all(of_container).expect("made");
    for file in ["controllers", "subtree_control"] {
        machine.write(&format!("sys/fs/cgroup/cgroup.{file}"), "cpu rdma\n");
    }
    let control = "sys/fs/cgroup/kubepods/cgroup.subtree_control";
    machine.write(control, "cpu rdma\n");
    let (max, events) = [("rdma.max"), ("c1/cgroup.events")]
        .map(|file| format!("sys/fs/cgroup/{}/{file}", pod.display()))
        .into();
    machine.write(&events, "populated 1\nfrozen 0\n");
    machine.write(&max, NONE);
    let configuration = configuration(&machine, 8, "");
    let running = Running::on(machine, &configuration).listed("rdma/hca", 8);
    let machine = &running.machine;
    let containers = LimitedContainers::new(&machine.path("state"), &machine.path("sys/fs/cgroup"));
    let container = LimitedContainer {
        format: FORMAT,
        boot_id: boot_id().expect("a boot"),
        namespace: "default".into(),
        pod: "a".into(),
        cgroup: pod.join("c1"),
        pod_cgroup: pod.into(),
        limits: RdmaLimits {
            handles: None,
            objects: Some(3),
        },
    };
    containers.limit("c1", &container).expect("limited");
    let has = |line: &str| {
        let text = fs::read_to_string(machine.path(&max)).expect("the file");
        text.contains(line)
    };

    machine.write(&max, NONE);
    running.daemon.signal(Signal::SIGHUP);
    wait::until("the device is limited", || has("mlx5_0 hca_object=3"));

    // the kernel removes `rdma.max` together with the controller
    fs::remove_file(machine.path(&max)).expect("removed");
    machine.write(control, "cpu\n");
    running
        .daemon
        .wait_for_log("disabled the controller rdma for the pod");
    let given = fs::read_to_string(machine.path(control)).expect("the file");
    assert_eq!(given, "+rdma");

    // an error that ends without an event: the daemon must retry
    fs::create_dir(machine.path(&max)).expect("made");
    machine.write(&events, "populated 0\nfrozen 0\n");
    running
        .daemon
        .wait_for_log("poda/rdma.max\": Is a directory");
    // wait until the daemon has read all events of the write
    std::thread::sleep(std::time::Duration::from_millis(500));
    fs::remove_dir(machine.path(&max)).expect("removed");
    machine.write(&max, LIMITED);
    wait::until("the limit is lifted", || has("mlx5_0 hca_object=max"));
    let record = machine.path("state/limited/c1.json");
    wait::until("it is forgotten", || !record.exists());
}
