// SPDX-License-Identifier: Apache-2.0
//! SMC's settings: kernels that lack some of them, and open connections.

use super::*;
use fake_kernel::{FakeKernel, Smc};
use rdma_netns::{
    Kernel as _,
    smc::{HeldConnections, PnetEntry, PnetId},
};
use std::path::Path;

fn id(text: &str) -> PnetId {
    PnetId::try_from(text).expect("a pnet id")
}

fn netdev(name: &str, netdev: &str) -> PnetEntry {
    PnetEntry {
        name: id(name),
        netdev: Some(netdev.to_owned()),
        rdma: None,
    }
}

fn add(at: NetnsSide, entry: PnetEntry) -> Op {
    Op::AddPnet { at, entry }
}

fn remove(at: NetnsSide, name: &str) -> Op {
    let id = id(name);
    Op::RemovePnet { at, id }
}

fn add_ueid(text: &str) -> Op {
    let ueid = text.to_owned();
    Op::AddUeid { ueid }
}

#[test]
fn tcp2smc_is_the_pods_and_only_where_the_kernel_has_it() {
    let (mut world, pod) = exclusive();
    let on = || Op::SetTcp2Smc { on: true };
    assert_eq!(world.smc(Some(pod)).expect("SMC").tcp2smc, None);
    assert_eq!(errno(&mut world, on()), Errno::ENOENT);
    world.smc = Some(Smc {
        has_tcp2smc: true,
        ..Smc::default()
    });
    assert_eq!(world.smc(Some(pod)).expect("SMC").tcp2smc, Some(false));
    make(&mut world, on());
    assert_eq!(world.smc(Some(pod)).expect("SMC").tcp2smc, Some(true));
    assert_eq!(world.smc(None).expect("SMC").tcp2smc, None);
}

#[test]
fn a_kernel_without_smc_adds_nothing_and_removes_nothing() {
    let (mut world, _) = exclusive();
    world.smc = None;
    assert_eq!(world.smc(None), None);
    for op in [add(AT, netdev("A1", "eth0")), add_ueid("EID")] {
        assert_eq!(errno(&mut world, op), Errno::ENOENT);
    }
    make(&mut world, remove(AT, "A1"));
    let ueid = "EID".to_owned();
    make(&mut world, Op::RemoveUeid { ueid });
}

#[test]
fn a_namespaces_table_dies_with_it() {
    let (mut world, _) = exclusive();
    make(&mut world, add(NetnsSide::Pod, netdev("A1", "eth0")));
    world.unmount("/run/netns/pod");
    let pod = world.create_namespace("/run/netns/pod");
    assert_eq!(world.smc(Some(pod)).expect("SMC").pod, []);
}

#[test]
fn a_held_connection_is_reported() {
    let (mut world, pod) = exclusive();
    world.hold_connections(pod, "mlx5_0", 2);
    let held = HeldConnections {
        device: "mlx5_0".to_owned(),
        count: 2,
    };
    assert_eq!(world.smc(Some(pod)).expect("SMC").held, [held]);
    world.hold_connections(pod, "mlx5_0", 0);
    assert_eq!(world.smc(Some(pod)).expect("SMC").held, []);
}

#[test]
#[should_panic(expected = "the move of mlx5_0 hangs: processes hold 2 SMC connections over it")]
fn a_device_with_held_connections_cannot_be_moved_in_time() {
    let (mut world, pod) = exclusive();
    make(
        &mut world,
        move_rdma("mlx5_0", NetnsSide::Host, NetnsSide::Pod),
    );
    world.hold_connections(pod, "mlx5_0", 2);
    make(
        &mut world,
        move_rdma("mlx5_0", NetnsSide::Pod, NetnsSide::Host),
    );
}

#[test]
fn a_snapshot_has_them_and_a_reboot_takes_them() {
    let kernel = FakeKernel::new(exclusive().0);
    let before = kernel.snapshot();
    let pod = kernel.open_pod(Path::new("/run/netns/pod")).expect("a pod");
    for op in [
        add(AT, netdev("A1", "eth0")),
        add(NetnsSide::Pod, netdev("B2", "eth0")),
        add_ueid("EID"),
    ] {
        kernel.execute(&op, Some(&pod)).expect("done");
    }
    let state = kernel.smc(Some(&pod)).expect("a state").expect("SMC");
    assert_eq!((state.host.len(), state.pod.len()), (1, 1));
    let differences = before.differences(&kernel.snapshot());
    assert_eq!(
        differences,
        [
            r#"+ host: pnet {"name":"A1","netdev":"eth0"}"#,
            r#"+ /run/netns/pod: pnet {"name":"B2","netdev":"eth0"}"#,
            "+ ueid EID",
        ]
    );
    kernel.with(|world| world.reboot());
    assert_eq!(kernel.snapshot(), before);
}

#[test]
fn max_links_are_only_where_the_kernel_has_the_setting() {
    let (mut world, pod) = exclusive();
    world.smc = Some(Smc {
        lacks_max_links: true,
        ..Smc::default()
    });
    assert_eq!(world.smc(Some(pod)).expect("SMC").max_links, None);
    let one = Op::SetMaxLinks { links: 1 };
    assert_eq!(errno(&mut world, one), Errno::ENOENT);
}
