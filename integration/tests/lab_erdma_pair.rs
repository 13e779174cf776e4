// SPDX-License-Identifier: Apache-2.0
//! In the lab, pods of two machines with eRDMA NICs on one fabric: `integration/lab/pair --tier erdma`, one test at a
//! time. Both machines run this program. Driver and user-space provider are real, the functions and the fabric are
//! models.

use integration::{
    Snapshot,
    erdma_functions::{Driver, ErdmaNode, counter, links},
    pair::Pair,
    traffic::{self, End},
};

/// The addresses of the NICs of machine 1, and those of machine 2.
const ADDRESSES: [[&str; 2]; 2] = [["10.0.0.1", "10.0.0.2"], ["10.0.0.3", "10.0.0.4"]];

/// A pod of machine 1 has the NIC of its NUMA node 0. A pod of machine 2 has the NIC of its NUMA node 1.
#[test]
fn pods_of_two_machines_exchange_data() {
    let pair = Pair::new("traffic");
    let nic = pair.number - 1;
    let own = ADDRESSES[pair.number - 1];
    let server_address = ADDRESSES[1][1];
    let scene = ErdmaNode::with_addresses(Driver::Kernel, "exclusive", own);
    let node = &scene.node;
    let rdma = scene.erdma.rdma(nic);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    node.add(&scene.configuration(nic), "c", &pod);
    assert_eq!(pod.addresses("rdma0"), [format!("{}/24", own[nic])]);
    let end = End {
        pod: &pod,
        rdma: &rdma,
        address: own[nic],
    };
    pair.meet("pods");

    pair.run(
        "rping",
        || traffic::serve_rping(end),
        || traffic::ask_rping(end, server_address),
    );
    // in a read, the server is the sender of the data
    for (program, sender) in [
        ("ib_read_bw -q 30", 2),
        ("ib_write_bw", 1),
        ("ib_send_bw", 1),
    ] {
        let earlier = counter(&pod, &rdma, "tx_bytes_cnt");
        pair.run(
            program,
            || traffic::serve_by_connection_manager(program, end),
            || {
                traffic::ask_by_connection_manager(program, end, server_address);
            },
        );
        if pair.number == sender {
            let bytes = counter(&pod, &rdma, "tx_bytes_cnt") - earlier;
            println!("{program}: {bytes} bytes sent by machine {sender}");
            assert!(bytes >= 100 * 4096, "{program}: {bytes} bytes");
        }
    }

    node.del(&scene.configuration(nic), "c", &pod);
    assert_eq!(links(&node.host).len(), 2);
    node.assert_restored(&before);
    pair.meet("end");
}
