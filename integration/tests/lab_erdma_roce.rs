// SPDX-License-Identifier: Apache-2.0
//! In the lab, eRDMA functions with RoCE v2: `integration/lab/vm --tier erdma --erdma-roce`, one test at a time.
//! Driver and user-space provider are real, the functions are models.

use integration::{
    Netns, Snapshot,
    daemon::rdma_device_plugin,
    erdma_functions::{ADDRESSES, Driver, ErdmaNode, links},
    pinged::pinged,
    traffic::{End, write_bandwidth},
};
use std::{env, fs};

/// Returns the GID index of an IPv4 address in the pod, and the type of that GID.
#[track_caller]
fn gid_of(pod: &Netns, rdma: &str, address: &str) -> Option<(usize, String)> {
    let bytes: Vec<u8> = address
        .split('.')
        .map(|byte| byte.parse().expect("an address"))
        .collect();
    let [a, b, c, d] = bytes[..] else {
        panic!("{address} is no address");
    };
    let gid = format!("0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}");
    let directory = format!("/sys/class/infiniband/{rdma}/ports/1");
    (0..8).find_map(|index| {
        let shown = pod.run(&format!("cat {directory}/gids/{index}"));
        let kind = || pod.run(&format!("cat {directory}/gid_attrs/types/{index}"));
        (shown.trim() == gid).then(|| (index, kind().trim().to_owned()))
    })
}

#[test]
fn pods_write_by_gids_of_their_addresses() {
    assert_eq!(env::var("RDMA_LAB_ERDMA_PROTOCOL").as_deref(), Ok("roce"));
    for driver in [Driver::Kernel, Driver::WithParent] {
        let scene = ErdmaNode::new(driver, "exclusive");
        let node = &scene.node;
        let devices = [0, 1].map(|nic| scene.erdma.rdma(nic));
        let layer = format!("/sys/class/infiniband/{}/ports/1/link_layer", devices[0]);
        assert_eq!(
            fs::read_to_string(layer).expect("a port").trim(),
            "Ethernet"
        );
        let before = Snapshot::of(&node.host);
        let pods = ["server", "client"].map(|label| node.pod(label));
        for (nic, pod) in pods.iter().enumerate() {
            let name = format!("trainer-{nic}");
            let arguments =
                format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name}");
            let add = node.invoke("ADD", &format!("c{nic}"), pod.path());
            let add = add.env("CNI_ARGS", arguments);
            add.input(&scene.configuration(nic)).run().result();
            // when ADD returns, the addresses are GIDs
            let gid = gid_of(pod, &devices[nic], ADDRESSES[nic]);
            let (index, kind) =
                gid.unwrap_or_else(|| panic!("{driver:?}: no GID of {}", ADDRESSES[nic]));
            assert_eq!(kind, "RoCE v2");

            let output = node.host.run(&format!(
                "{} doctor pod {name} --gid-index {index} --state-dir {}",
                rdma_device_plugin().display(),
                node.state().display()
            ));
            let right = format!("right: {}, RoCE v2, is the pod's own", ADDRESSES[nic]);
            for line in [
                format!("NCCL_IB_GID_INDEX={index}: {right}"),
                format!(
                    "NCCL_IB_ADDR_FAMILY=AF_INET without NCCL_IB_GID_INDEX: index {index}: {right}"
                ),
            ] {
                assert!(output.contains(&line), "{driver:?}: {output}");
            }
        }
        let [server, client] = [0, 1].map(|it: usize| End {
            pod: &pods[it],
            rdma: &devices[it],
            address: ADDRESSES[it],
        });
        let bandwidth = write_bandwidth(server, client, ADDRESSES[0]);
        assert!(bandwidth > 0.0, "{driver:?}");
        // the driver creates only RC queue pairs
        let (code, pair) = pinged(&pods[1], ADDRESSES[0], "10");
        assert_eq!((code, &pair["sent"]), (1, &0.into()), "{driver:?}: {pair}");
        let reason = "the RDMA device's driver has no QP 1, which sends the requests: use ping(8) and perftest";
        assert_eq!(pair["reason"], reason, "{driver:?}: {pair}");
        for (nic, pod) in pods.iter().enumerate() {
            node.del(&scene.configuration(nic), &format!("c{nic}"), pod);
        }
        assert_eq!(links(&node.host).len(), 2);
        node.assert_restored(&before);
    }
}
