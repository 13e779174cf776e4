// SPDX-License-Identifier: Apache-2.0
//! Tests of a multi-plane NIC (XDR), which has two RDMA devices on one PCI function: `mlx5_0`, and `smi1` with a port
//! for each plane.

use crate::{FIRST, Running, SECOND, ids};
use integration::Machine;

fn node(configuration: &str) -> Running {
    let machine = Machine::with(&[FIRST, SECOND]);
    machine.is_multi_plane(&FIRST, "smi1", 4);
    Running::on(machine, configuration)
}

/// Returns the device paths in a container to which kubelet allocates `id` of `resource`.
fn given(node: &Running, resource: &str, id: &str) -> Vec<String> {
    let answer = node.kubelet.ask_for(resource, &[&ids(&[id])]);
    let answer = answer.expect("allocated").container_responses.remove(0);
    let devices = answer.devices.into_iter();
    let names = devices.map(|it| it.container_path.replace("/dev/infiniband/", ""));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn umad_gives_every_planes_devices_and_nothing_else_does() {
    let node = node(
        r#"{"resources":[
            {"name":"rdma/plain","kind":"shared","count":1,"devices":[{"rdma":"mlx5_0"}]},
            {"name":"rdma/umad","kind":"shared","count":1,"umad":true,"devices":[{"rdma":"mlx5_0"}]},
            {"name":"rdma/other","kind":"shared","count":1,"umad":true,"devices":[{"rdma":"mlx5_1"}]}
        ]}"#,
    );
    let node = node.listed("rdma/plain", 1).listed("rdma/umad", 1);
    let node = node.listed("rdma/other", 1);
    assert_eq!(given(&node, "rdma/plain", "0"), ["rdma_cm", "uverbs0"]);
    let all = [
        "issm0", "issm1", "issm2", "issm3", "issm4", "rdma_cm", "umad0", "umad1", "umad2", "umad3",
        "umad4", "uverbs0",
    ];
    assert_eq!(given(&node, "rdma/umad", "0"), all);
    assert_eq!(given(&node, "rdma/other", "0"), ["rdma_cm", "uverbs1"]);
}

/// The metrics have no series for the sub-device or its ports.
#[test]
fn the_figures_are_those_of_the_device_with_verbs() {
    let node = node(
        r#"{"resources":[{"name":"rdma/hca","kind":"exclusive","devices":[{"rdma":"mlx5_0"}]}]}"#,
    );
    let node = node.listed("rdma/hca", 1);
    let text = node.daemon.get("/metrics");
    assert!(!text.contains("smi1"), "{text}");
    let of = |name: &str| -> Vec<&str> {
        let lines = text.lines().filter(|it| it.starts_with(name));
        lines.filter(|it| it.contains("mlx5_0")).collect()
    };
    let info = of("rdma_device_info{");
    assert_eq!(info.len(), 1, "{text}");
    assert!(info[0].contains(r#"address="0000:3b:00.0""#), "{info:?}");
    assert_eq!(
        of("rdma_port_state{"),
        [r#"rdma_port_state{device="mlx5_0",port="1"} 4"#]
    );
    assert_eq!(
        of("rdma_device_healthy{"),
        [r#"rdma_device_healthy{device="mlx5_0"} 1"#]
    );
}
