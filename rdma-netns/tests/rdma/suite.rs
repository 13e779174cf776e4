// SPDX-License-Identifier: Apache-2.0
//! Runs on the real kernel the rules that also apply to the fake kernel.

use crate::{World, run, smc::Clean};
use conformance::Node;
use rdma_netns::Linux;

conformance::suite!(rdma: crate::suite::with_rdma);

fn with_rdma(rule: impl FnOnce(&Node<'_, Linux>)) {
    let world = World::new("rdma-suite");
    let _clean = Clean;
    let pod = world.pod();
    rule(&Node {
        kernel: &world.kernel,
        pod: &pod,
        add_vlan: &|nic, id| {
            run(&format!(
                "ip link add link {nic} name {nic}.{id} type vlan id {id}"
            ))
        },
    });
}
