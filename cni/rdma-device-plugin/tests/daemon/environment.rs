// SPDX-License-Identifier: Apache-2.0
//! Tests of containers' environments: variables for libraries at Allocate, and the pod's rails before the container's
//! start.

use crate::{FIRST, HCA as OLD, Running, SECOND, ids};
use integration::{
    Machine,
    kubelet::pod_resources::{PodResourcesServer, pod},
    machine::Nic,
};
use rdma_netns::{Kernel, linux::Linux};
use serde_json::{Value, json};
use std::{collections::HashMap, fs};

/// Configuration with both NICs in a resource whose rails `rdma-cni` attaches.
const CONFIGURATION: &str = r#"{"cdi": true,
    "resources": [{
        "name": "rdma/hca", "kind": "shared", "count": 8, "environment": ["rails", "nccl", "ucx", "nvshmem"]
    }],
    "chain": {"plugin": {"resources": ["rdma/hca"], "ipam": {"type": "rdma-ipam", "from": "parent"}}}}"#;

/// Writes the record of a pod with one rail on each NIC. `ids` are the ids of the rails, and `indexes` the indexes of
/// their GIDs.
fn record(running: &Running, container: &str, ids: &[&str], indexes: [u64; 2]) {
    let ids: Vec<_> = ids.iter().map(|id| ("rdma/hca", *id)).collect();
    let rails = [(0, &*ids, indexes[0]), (1, &*ids, indexes[1])];
    record_of(running, container, &rails);
}

/// A rail: the number of its NIC; the resources and ids by which kubelet allocated it; the index of its GID.
type RailOf<'a> = (usize, &'a [(&'a str, &'a str)], u64);

fn record_of(running: &Running, container: &str, rails: &[RailOf<'_>]) {
    let rails = rails.iter().map(|(number, ids, index)| {
        let allocated: Vec<Value> = ids
            .iter()
            .map(|(resource, id)| json!({"resource": resource, "id": id}))
            .collect();
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

/// Writes the GIDs of the NIC's port. Each address has two entries, as with mlx5.
fn gids(running: &Running, nic: &Nic<'_>, addresses: &[&str]) {
    let port = format!("sys/class/infiniband/{}/ports/1", nic.rdma);
    for directory in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
        let below = running.machine.path(&format!("{port}/{directory}"));
        fs::create_dir_all(below).expect("a directory");
    }
    for index in 0..16 {
        let address = addresses.get(index / 2).copied();
        let gid: std::net::Ipv6Addr = address.unwrap_or("::").parse().expect("an address");
        let gid = gid.segments().map(|it| format!("{it:04x}")).join(":");
        let write = |file: &str, text: &str| {
            let below = format!("{port}/{file}/{index}");
            running.machine.write(&below, &format!("{text}\n"));
        };
        write("gids", &gid);
        if address.is_some() {
            write("gid_attrs/types", ["IB/RoCE v1", "RoCE v2"][index % 2]);
            write("gid_attrs/ndevs", nic.netdev);
        }
    }
}

/// Returns the content of the file `below` the directory of containers' files.
fn file(running: &Running, below: &str) -> String {
    let path = running.machine.path("state/containers").join(below);
    fs::read_to_string(path).expect("the file")
}

fn pod_resources(running: &Running) -> PodResourcesServer {
    PodResourcesServer::start(&running.machine.path("kubelet/pod-resources/kubelet.sock"))
}

/// Returns the rails (`RDMA_RAILS`) in the CDI entry of each container, by the entry's full name.
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
fn a_container_gets_library_settings_at_allocate_and_its_pods_rails_before_its_start() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let _pods = pod_resources(&running);
    let own = ids(&["5", "3"]);
    let answer = running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let given = &answer.container_responses[0];
    let expected = [
        ("NCCL_CONF_FILE", "/run/rdma/nccl.conf"),
        ("NCCL_IB_ADDR_FAMILY", "AF_INET6"),
        ("NCCL_SOCKET_IFNAME", "^rdma,docker,lo"),
        ("NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_1:1"),
        ("NVSHMEM_IB_ADDR_FAMILY", "AF_INET6"),
        ("UCX_CONFIG_DIR", "/run/rdma"),
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

    // kubelet passes the ids in any order, and an id may have no rail
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
        "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_IB_GID_INDEX=5\n"
    );
    let of_ucx = fs::read_to_string(file.with_file_name("ucx.conf"));
    assert_eq!(
        of_ucx.expect("the file"),
        "UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1\n"
    );

    // a pod with hostNetwork has no record
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

    // the first container has ended, and kubelet allocates its ids to another container
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
        "NCCL_IB_HCA==mlx5_0,mlx5_1\n",
        "they differ"
    );
}

/// ADD skips an allocated shared NIC that is down, or that the pod has not selected.
#[test]
fn a_container_gets_no_rail_that_add_has_skipped() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let _pods = pod_resources(&running);
    let own = ids(&["3"]);
    running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    record_of(&running, "c1", &[(1, &[("rdma/hca", "3")], 7)]);
    running
        .kubelet
        .before_start("rdma/hca", &own)
        .expect("it may");
    assert_eq!(
        file(&running, "rdma@hca/3/nccl.conf"),
        "NCCL_IB_HCA==mlx5_1\nNCCL_IB_GID_INDEX=7\n"
    );
    assert_eq!(
        file(&running, "rdma@hca/3/ucx.conf"),
        "UCX_NET_DEVICES=mlx5_1:1\n"
    );
    // a pod with hostNetwork has both NICs, and no GIDs of its own
    let on_host = ids(&["4"]);
    running
        .kubelet
        .ask_for("rdma/hca", &[&on_host])
        .expect("given");
    running
        .kubelet
        .before_start("rdma/hca", &on_host)
        .expect("it may");
    assert_eq!(
        file(&running, "rdma@hca/4/nccl.conf"),
        "NCCL_IB_HCA==mlx5_0,mlx5_1\n"
    );
}

/// By default pods have no rails on InfiniBand. Two VLANs of a NIC are two rails with one RDMA device.
#[test]
fn a_device_is_named_once_and_one_of_infiniband_without_a_rail() {
    let machine = Machine::with(&[FIRST, SECOND]);
    let link_layer = format!("sys/class/infiniband/{}/ports/1/link_layer", SECOND.rdma);
    machine.write(&link_layer, "InfiniBand\n");
    let running = Running::on(machine, CONFIGURATION).listed("rdma/hca", 8);
    let _pods = pod_resources(&running);
    let own = ids(&["3"]);
    running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let allocated = [("rdma/hca", "3")];
    record_of(&running, "c1", &[(0, &allocated, 5), (0, &allocated, 5)]);
    running
        .kubelet
        .before_start("rdma/hca", &own)
        .expect("it may");
    assert_eq!(
        file(&running, "rdma@hca/3/nccl.conf"),
        "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_IB_GID_INDEX=5\n"
    );
}

/// Configuration with two resources. Each resource has one NIC.
const APART: &str = r#"{"resources": [
        {"name": "rdma/a", "kind": "shared", "count": 8, "devices": [{"rdma": "mlx5_0"}], "environment": ["nccl"]},
        {"name": "rdma/b", "kind": "shared", "count": 8, "devices": [{"rdma": "mlx5_1"}],
         "environment": ["nccl", "ucx"]}
    ],
    "chain": {"plugin": {"resources": ["rdma/a", "rdma/b"], "ipam": {"type": "rdma-ipam", "from": "parent"}}}}"#;

/// If two resources mount the same path or set the same variable, the runtime uses either of the two.
#[test]
fn two_resources_of_a_container_give_it_the_same_environment() {
    let running = Running::with(APART).listed("rdma/a", 8);
    running.has("rdma/b", 8);
    let pods = pod_resources(&running);
    for (resource, id) in [("rdma/a", "3"), ("rdma/b", "5")] {
        let given = running.kubelet.ask_for(resource, &[&ids(&[id])]);
        given.expect("given");
    }
    pods.set_pods(&[pod(
        "default",
        "trainer-0",
        &[
            &[("rdma/a", &["3"]), ("rdma/b", &["5"])],
            &[("rdma/b", &["7"])],
        ],
    )]);
    // the id 7 belongs to the pod's second container
    let of_b = [("rdma/b", "5"), ("rdma/b", "7")];
    record_of(&running, "c1", &[(0, &[("rdma/a", "3")], 5), (1, &of_b, 5)]);
    for (resource, id) in [("rdma/a", "3"), ("rdma/b", "5")] {
        let started = running.kubelet.before_start(resource, &ids(&[id]));
        started.expect("it may");
    }
    for directory in ["rdma@a/3", "rdma@b/5"] {
        let nccl = file(&running, &format!("{directory}/nccl.conf"));
        assert_eq!(
            nccl, "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_IB_GID_INDEX=5\n",
            "{directory}"
        );
        let ucx = file(&running, &format!("{directory}/ucx.conf"));
        assert_eq!(ucx, "UCX_NET_DEVICES=mlx5_1:1\n", "{directory}");
    }
    let given = running.kubelet.ask_for("rdma/b", &[&ids(&["7"])]);
    given.expect("given");
    let started = running.kubelet.before_start("rdma/b", &ids(&["7"]));
    started.expect("it may");
    assert_eq!(
        file(&running, "rdma@b/7/nccl.conf"),
        "NCCL_IB_HCA==mlx5_1\nNCCL_IB_GID_INDEX=5\n"
    );
}

/// The pod has selected only the NIC of `rdma/a`. NCCL must then not use the NIC of `rdma/b`.
#[test]
fn nccl_is_kept_from_a_device_where_add_has_left_out_all_of_a_resource() {
    let configuration = APART.replacen(r#", "environment": ["nccl"]"#, "", 1);
    let running = Running::with(&configuration).listed("rdma/a", 8);
    running.has("rdma/b", 8);
    let pods = pod_resources(&running);
    for (resource, id) in [("rdma/a", "3"), ("rdma/b", "5")] {
        let given = running.kubelet.ask_for(resource, &[&ids(&[id])]);
        given.expect("given");
    }
    let both: &[(&str, &[&str])] = &[("rdma/a", &["3"]), ("rdma/b", &["5"])];
    pods.set_pods(&[pod("default", "trainer-0", &[both])]);
    record_of(&running, "c1", &[(0, &[("rdma/a", "3")], 5)]);
    let started = running.kubelet.before_start("rdma/b", &ids(&["5"]));
    started.expect("it may");
    assert_eq!(
        file(&running, "rdma@b/5/nccl.conf"),
        "NCCL_IB_HCA=^=mlx5_1\n"
    );
    assert_eq!(file(&running, "rdma@b/5/ucx.conf"), "");
}

/// A GID table has the addresses of the node and of other pods, and without an index NCCL selects a GID by its subnet.
#[test]
fn nccl_chooses_by_itself_only_where_it_chooses_the_pods() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let _pods = pod_resources(&running);
    let own = ids(&["3"]);
    let nccl_conf = |first: &[&str], second: &[&str], indexes: [u64; 2]| {
        gids(&running, &FIRST, first);
        gids(&running, &SECOND, second);
        running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
        record(&running, "c1", &["3"], indexes);
        let started = running.kubelet.before_start("rdma/hca", &own);
        started.expect("it may");
        file(&running, "rdma@hca/3/nccl.conf")
    };
    // any subnet that contains both addresses of the pod also contains an address of the node
    let first = ["fe80::1", "fd00::1", "fd00::7"];
    let second = ["fe80::2", "fd00::1:1", "fd00::1:3", "fd00::1:7"];
    assert_eq!(
        nccl_conf(&first, &second, [5, 7]),
        "NCCL_IB_HCA==mlx5_0,mlx5_1\n"
    );
    running.daemon.wait_for_log(
        "rdma/hca: default/trainer-0: NCCL gets no GID variables: no GID index is right on all rails of the pod \
         (mlx5_0: 5, mlx5_1: 7), and by address NCCL would take fd00::1 at index 3 of mlx5_0, which is not the pod's",
    );
    // the node's addresses are in other subnets
    let first = ["fe80::1", "2001:db8::1", "fd00::7"];
    let second = ["fe80::2", "2001:db8::2", "::ffff:192.0.2.1", "fd00::1:7"];
    assert_eq!(
        nccl_conf(&first, &second, [5, 7]),
        "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_IB_ADDR_FAMILY=AF_INET6\nNCCL_IB_ROCE_VERSION_NUM=2\n\
         NCCL_IB_ADDR_RANGE=fd00::/111\n"
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

/// The operator removes `rails` from `environment` after Allocate. The runtime still starts the container by the name
/// of the CDI entry from Allocate, so the daemon must write this entry.
#[test]
fn promised_rails_are_published_under_any_later_configuration() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let _pods = pod_resources(&running);
    let own = ids(&["3"]);
    running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    running
        .machine
        .configure(&CONFIGURATION.replace(r#""rails", "#, ""));
    running.daemon.signal(nix::sys::signal::Signal::SIGHUP);
    running
        .daemon
        .wait_for_log("the new configuration takes effect");
    record(&running, "c1", &["3"], [5, 5]);
    running
        .kubelet
        .before_start("rdma/hca", &own)
        .expect("it may");
    let rails = &entries(&running)["rdma-device-plugin/container=rdma--hca:3"];
    assert_eq!(rails[0]["gidIndex"], 5, "{rails}");
}

/// If the daemon cannot determine or write the environment, it returns an error, and kubelet repeats its call.
#[test]
fn a_container_whose_environment_cannot_be_written_does_not_start() {
    let running = Running::with(CONFIGURATION).listed("rdma/hca", 8);
    let _pods = pod_resources(&running);
    let own = ids(&["3"]);
    running.kubelet.ask_for("rdma/hca", &[&own]).expect("given");
    let file = running
        .machine
        .path("cdi/rdma-device-plugin-container.json");
    fs::create_dir_all(&file).expect("a directory in its place");
    let refused = running.kubelet.before_start("rdma/hca", &own);
    let status = refused.expect_err("it must not");
    assert!(
        status
            .message()
            .contains("cannot set up the container's environment"),
        "{status}"
    );
    fs::remove_dir(&file).expect("removed");
    // this record cannot be read, and may belong to the pod
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
    running.daemon.wait_for_log(&format!("{} ", FIRST.rdma));
}
