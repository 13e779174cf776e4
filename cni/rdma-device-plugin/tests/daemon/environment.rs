// SPDX-License-Identifier: Apache-2.0
//! What containers find in their environment: at Allocate for libraries, and before their start what is true for their
//! pod.

use crate::{FIRST, HCA as OLD, Running, ids};
use rdma_netns::{Kernel, linux::Linux};
use serde_json::{Value, json};
use std::{collections::HashMap, fs};

/// Both NICs, with rails by the chain.
const CONFIGURATION: &str = r#"{"cdi": true,
    "resources": [{
        "name": "rdma/hca", "kind": "shared", "count": 8, "environment": ["rails", "nccl", "ucx", "nvshmem"]
    }],
    "chain": {"plugin": {"resources": ["rdma/hca"], "ipam": {"type": "rdma-ipam", "from": "parent"}}}}"#;

/// The record of a pod with a rail on each NIC, by `ids`, whose GIDs have these indexes.
fn record(running: &Running, container: &str, ids: &[&str], indexes: [u64; 2]) {
    let allocated: Vec<Value> = ids
        .iter()
        .map(|id| json!({"resource": "rdma/hca", "id": id}))
        .collect();
    let rails = indexes.iter().enumerate().map(|(number, index)| {
        let rdma = format!("mlx5_{number}");
        let address = format!("fd00::{number}:7");
        let gid = json!({"address": address, "gid": address, "port": 1, "index": index});
        json!({
            "podName": format!("rdma{number}"),
            "shared": {
                "parent": format!("bond{number}"), "parentIndex": number + 4, "parentMtu": 1500,
                "child": {"type": "macvlan", "mode": "bridge"},
            },
            "rdma": {
                "name": rdma, "index": number, "node_guid": "0000:0000:0000:0000", "parent": null,
                "ports": [],
            },
            "allocated": {"ids": allocated},
            "gids": [gid],
        })
    });
    let record = json!({
        "format": 1,
        "key": {"network": "pods", "container": container, "interface": "eth0"},
        "pod": "default/trainer-0",
        "bootId": Linux::new().boot_id().expect("an id"),
        "netns": "/var/run/netns/x", "netnsId": {"device": 4, "inode": 1, "cookie": 2},
        "phase": "attached", "rdmaMode": "shared", "dad": "off", "acceptRa": false, "config": {},
        "rails": rails.collect::<Vec<_>>(),
    });
    write(running, container, &record.to_string());
}

fn write(running: &Running, container: &str, record: &str) {
    let pods = running.machine.path("state/attachments/pods");
    fs::create_dir_all(&pods).expect("a directory");
    let written = fs::write(pods.join(format!("{container}@eth0.json")), record);
    written.expect("written");
}

/// The entries of containers, by their names.
fn entries(running: &Running) -> HashMap<String, Value> {
    let file = running
        .machine
        .path("cdi/rdma-device-plugin-container.json");
    let content: Value = serde_json::from_slice(&fs::read(file).expect("the file")).expect("JSON");
    let kind = content["kind"].as_str().expect("a kind");
    let devices = content["devices"].as_array().expect("a list").iter();
    let entry = |it: &Value| {
        let name = it["name"].as_str().expect("a name");
        let env = it["containerEdits"]["env"][0].as_str().expect("a text");
        let rails = env.strip_prefix("RDMA_RAILS=").expect("the variable");
        let rails = serde_json::from_str(rails).expect("JSON");
        (format!("{kind}={name}"), rails)
    };
    devices.map(entry).collect()
}

#[test]
fn a_container_is_told_at_allocate_what_libraries_need_and_before_its_start_what_its_pod_has() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let own = ids(&["5", "3"]);
    let answer = running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let given = &answer.container_responses[0];
    let expected = [
        ("NCCL_CONF_FILE", "/run/rdma/nccl.conf"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_1"),
        ("NCCL_SOCKET_IFNAME", "^rdma,docker,lo"),
        ("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_1:1"),
        ("NVSHMEM_IB_ADDR_FAMILY", "AF_INET6"),
        ("UCX_NET_DEVICES", "mlx5_0:1,mlx5_1:1"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(given.envs, HashMap::from(expected));
    let [mount] = &given.mounts[..] else {
        panic!("{:?}", given.mounts);
    };
    assert_eq!(
        (&*mount.container_path, mount.read_only),
        ("/run/rdma", true)
    );
    let file = running
        .machine
        .path("state/containers/rdma@hca/3/nccl.conf");
    assert_eq!(
        Some(file.parent().expect("a directory")),
        Some(mount.host_path.as_ref())
    );
    assert!(!file.exists(), "nothing is known yet");
    let name = "rdma-device-plugin/container=rdma--hca:3";
    assert!(given.cdi_devices.iter().any(|it| it.name == name));
    let before = fs::read_dir(running.machine.path("cdi")).expect("a directory");
    assert_eq!(
        before.count(),
        1,
        "the runtime cannot make the container yet"
    );

    // kubelet gives the ids in whichever order, and not each came to a rail
    record(&running, "c1", &["5"], [5, 5]);
    running
        .kubelet
        .before_start("rdma/hca", &ids(&["3", "5"]))
        .expect("it may");
    let rails = &entries(&running)[name];
    assert_eq!(rails[1]["interface"], "rdma1", "{rails}");
    assert_eq!(rails[1]["rdmaDevice"], "mlx5_1", "{rails}");
    assert_eq!(rails[1]["gidIndex"], 5, "{rails}");
    assert_eq!(
        fs::read_to_string(&file).expect("the file"),
        "NCCL_IB_GID_INDEX=5\n"
    );

    // a pod with hostNetwork is in no record
    let others = ids(&["1"]);
    running
        .kubelet
        .ask_for("rdma/hca", &[&others])
        .expect("given");
    running
        .kubelet
        .before_start("rdma/hca", &others)
        .expect("it may");
    let all = entries(&running);
    assert_eq!(all["rdma-device-plugin/container=rdma--hca:1"], json!([]));
    assert_eq!(all[name][1]["gidIndex"], 5);

    // the first has ended, and its ids are another's
    fs::remove_file(running.machine.path("state/attachments/pods/c1@eth0.json")).expect("removed");
    let next = running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    assert_eq!(next.container_responses[0].envs, given.envs);
    assert!(!file.exists(), "what was another's is gone");
    record(&running, "c2", &["3", "5"], [7, 9]);
    running
        .kubelet
        .before_start("rdma/hca", &own)
        .expect("it may");
    assert_eq!(entries(&running)[name][1]["gidIndex"], 9);
    assert_eq!(
        fs::read_to_string(&file).expect("the file"),
        "",
        "they differ"
    );
}

#[test]
fn without_the_option_nothing_is_set_and_no_record_is_read() {
    let running = Running::with(OLD).listed("rdma/hca", 1000);
    let own = ids(&["3"]);
    let answer = running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let given = &answer.container_responses[0];
    assert!(
        given.envs.is_empty() && given.mounts.is_empty(),
        "{given:?}"
    );
    write(&running, "c1", "{");
    running
        .kubelet
        .before_start("rdma/hca", &own)
        .expect("it may");
    assert!(!running.machine.path("state/containers").exists());
}

/// The option is turned off, and the node boots: a container that was promised an entry is started again by its name.
#[test]
fn what_was_promised_is_told_whatever_the_configuration_is_by_then() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let own = ids(&["3"]);
    running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    running
        .machine
        .configure(&CONFIGURATION.replace(r#""rails", "#, ""));
    running.daemon.signal(nix::sys::signal::Signal::SIGHUP);
    running.daemon.says("a new configuration is in force");
    record(&running, "c1", &["3"], [5, 5]);
    running
        .kubelet
        .before_start("rdma/hca", &own)
        .expect("it may");
    let rails = &entries(&running)["rdma-device-plugin/container=rdma--hca:3"];
    assert_eq!(rails[0]["gidIndex"], 5, "{rails}");
}

/// What is not known is not told wrongly: kubelet asks again.
#[test]
fn a_container_whose_environment_cannot_be_written_does_not_start() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let own = ids(&["3"]);
    running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let file = running
        .machine
        .path("cdi/rdma-device-plugin-container.json");
    fs::create_dir_all(&file).expect("a directory in its place");
    let refused = running.kubelet.before_start("rdma/hca", &own);
    let status = refused.expect_err("it must not");
    assert!(
        status.message().contains("environment is not set up"),
        "{status}"
    );
    fs::remove_dir(&file).expect("removed");
    // it could be this pod's
    write(&running, "c1", "{");
    let refused = running.kubelet.before_start("rdma/hca", &own);
    let status = refused.expect_err("it must not");
    assert!(
        status
            .message()
            .contains("container c1 (eth0 of network pods)"),
        "{status}"
    );
    record(&running, "c1", &["3"], [5, 5]);
    running
        .kubelet
        .before_start("rdma/hca", &own)
        .expect("it may");
    running.daemon.says(&format!("{} ", FIRST.rdma));
}
