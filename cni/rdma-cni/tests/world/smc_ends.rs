// SPDX-License-Identifier: Apache-2.0
//! Tests of DEL with SMC-R: the kernel refuses changes, the pod's namespace has ended, or the kernel has no SMC any
//! more.

use crate::{
    node::Node,
    smc::{id_of, one_rail_that_asks, one_rail_with_smc, record, seen},
};
use fake_kernel::{Smc, Verdict};
use nix::errno::Errno;
use rdma_netns::{NetnsSide, Op, RdmaMode};

#[test]
fn any_change_of_del_is_refused_once() {
    for at in 1.. {
        for verdict in [Verdict::Refuse(Errno::EIO), Verdict::Deceive(Errno::EIO)] {
            let node = Node::new(RdmaMode::Exclusive);
            node.kernel.with(|world| {
                world.smc = Some(Smc {
                    has_tcp2smc: true,
                    ..Smc::default()
                });
            });
            let pod = node.pod("a");
            let before = node.snapshot();
            let config = one_rail_with_smc(&node);
            node.add(&pod, &config).must_succeed();
            node.script(move |number| match number == at {
                true => verdict,
                false => Verdict::Proceed,
            });
            node.del(&pod, &config).must_succeed();
            node.must_be(&before, &format!("change {at} {verdict:?}"));
            if node.kernel.journal().len() < at {
                assert!(at > 10, "{at}");
                return;
            }
        }
    }
}

/// Although the kernel refuses to remove a pnet entry, DEL returns the devices to the host. DEL reports the refusal,
/// and the next DEL tries again.
#[test]
fn a_record_that_stays_is_reported_and_the_devices_return_to_the_host() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = one_rail_with_smc(&node);
    node.add(&pod, &config).must_succeed();
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::RemovePnet {
            at: NetnsSide::Host,
            ..
        } => Verdict::Refuse(Errno::EPERM),
        _ => Verdict::Proceed,
    });
    let message = node.del(&pod, &config).must_fail(107);
    assert!(message.contains("smc_pnet -d"), "{message}");
    assert_eq!(
        node.kernel.with(|world| world.place_of_rdma("mlx5_2")),
        Some(fake_kernel::world::HOST)
    );
    assert_eq!(seen(&node, None).ueids, [""; 0]);
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after the second DEL");
}

/// ADD of a pod that only requests SMC-R succeeds, although `rdma-cni` cannot undo a failed set-up. DEL tries again,
/// and removes the settings.
#[test]
fn del_removes_smc_that_add_could_not_remove() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let before = node.snapshot();
    let config = one_rail_that_asks(&node);
    node.kernel.begin();
    node.kernel.intercept(|_, step| match step.op {
        Op::AddPnet {
            at: NetnsSide::Pod, ..
        }
        | Op::RemovePnet { .. } => Verdict::Refuse(Errno::EPERM),
        _ => Verdict::Proceed,
    });
    node.add(&pod, &config).must_succeed();
    let record = record(&node, &pod);
    assert_eq!(record["smc"]["state"], "off");
    assert_eq!(seen(&node, None).host.len(), 1);
    node.kernel.begin();
    node.del(&pod, &config).must_succeed();
    node.must_be(&before, "after DEL");
}

#[test]
fn the_path_of_the_namespace_is_gone_and_another_pod_has_the_nic() {
    let node = Node::new(RdmaMode::Exclusive);
    let other = node.pod("b");
    let before = node.snapshot();
    let pod = node.pod("a");
    let config = one_rail_with_smc(&node);
    let id = id_of(&node, "eth2");
    node.add(&pod, &config).must_succeed();
    node.kernel.with(|world| world.unmount(&pod.netns));
    node.add(&other, &config).must_succeed();
    assert_eq!(*seen(&node, Some(&other)).host[0].name, *id);
    node.del(&pod, &config).must_succeed();
    assert_eq!(seen(&node, Some(&other)).host.len(), 1);
    node.del(&other, &config).must_succeed();
    node.must_be(&before, "after both");
}

/// The kernel has no SMC any more, so all SMC-R settings have disappeared too.
#[test]
fn smc_itself_is_gone() {
    let node = Node::new(RdmaMode::Exclusive);
    let pod = node.pod("a");
    let config = one_rail_with_smc(&node);
    node.add(&pod, &config).must_succeed();
    node.kernel.with(|world| world.smc = None);
    node.del(&pod, &config).must_succeed();
    assert_eq!(node.records(), [""; 0]);
}
