// SPDX-License-Identifier: Apache-2.0
//! The rules that the real kernel must pass too.

use conformance::Node;
use fake_kernel::{FakeKernel, Nic, World};
use rdma_netns::{Kernel as _, RdmaMode};
use std::path::Path;

conformance::suite!(crate::suite::with_node);
conformance::suite!(rdma: crate::suite::with_rdma);

fn with_node(rule: impl FnOnce(&Node<'_, FakeKernel>)) {
    let mut world = World::new(None);
    for (address, link) in [("0000:01:00.0", "nic0"), ("0000:02:00.0", "nic1")] {
        world.plug(Nic::physical(address, link, "none").without_rdma());
    }
    run(world, rule);
}

fn with_rdma(rule: impl FnOnce(&Node<'_, FakeKernel>)) {
    let mut world = World::new(Some(RdmaMode::Exclusive));
    world.plug(Nic::physical("0000:01:00.0", "nic0", "rxe0"));
    world.plug(Nic::physical("0000:02:00.0", "nic1", "rxe1"));
    run(world, |node| {
        node.make(conformance::ops::up("nic0", true));
        node.make(conformance::ops::up("nic1", true));
        rule(node);
    });
}

fn run(mut world: World, rule: impl FnOnce(&Node<'_, FakeKernel>)) {
    let path = "/run/netns/pod";
    world.create_namespace(path);
    let kernel = FakeKernel::new(world);
    let pod = kernel.open_pod(Path::new(path)).expect("the pod");
    rule(&Node {
        kernel: &kernel,
        pod: &pod,
        add_vlan: &|nic, id| kernel.with(|world| world.add_vlan(nic, id)),
    });
}
