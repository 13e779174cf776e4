// SPDX-License-Identifier: Apache-2.0
//! SMC's settings. What an empty table, a full one, another namespace's and a held connection do
//! was seen on Linux 6.12 (`rdma-netns/tests/rdma/smc.rs`).

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

fn port(name: &str, device: &str, port: u8) -> PnetEntry {
    PnetEntry {
        name: id(name),
        netdev: None,
        rdma: Some((device.to_owned(), port)),
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
fn each_namespace_has_a_table_and_the_host_has_the_ports() {
    let (mut world, pod) = exclusive();
    make(&mut world, add(AT, netdev("A1", "eth0")));
    make(&mut world, add(AT, port("A1", "mlx5_0", 1)));
    make(&mut world, add(NetnsSide::Pod, netdev("B2", "eth0")));
    let state = world.smc(Some(pod)).expect("a kernel with SMC");
    assert_eq!(state.host, [netdev("A1", "eth0"), port("A1", "mlx5_0", 1)]);
    assert_eq!(state.pod, [netdev("B2", "eth0")]);
    assert_eq!(world.smc(None).expect("a kernel with SMC").pod, []);
    let refused = errno(&mut world, add(NetnsSide::Pod, port("B2", "mlx5_0", 1)));
    assert_eq!(refused, Errno::EEXIST);
}

#[test]
fn an_entry_of_both_is_two() {
    let (mut world, _) = exclusive();
    let both = PnetEntry {
        rdma: Some(("mlx5_0".to_owned(), 1)),
        ..netdev("A1", "eth0")
    };
    make(&mut world, add(AT, both));
    let state = world.smc(None).expect("a kernel with SMC");
    assert_eq!(state.host, [netdev("A1", "eth0"), port("A1", "mlx5_0", 1)]);
}

#[test]
fn names_need_not_be_there() {
    let (mut world, _) = exclusive();
    make(&mut world, add(AT, netdev("A1", "eth9")));
    make(&mut world, add(AT, port("A1", "mlx5_9", 2)));
    assert_eq!(world.smc(None).expect("a kernel with SMC").host.len(), 2);
    for wrong in [0, 3] {
        let refused = errno(&mut world, add(AT, port("A1", "mlx5_8", wrong)));
        assert_eq!(refused, Errno::EINVAL);
    }
}

#[test]
fn an_entry_follows_neither_netdev_nor_device() {
    let (mut world, pod) = exclusive();
    make(&mut world, add(AT, netdev("A1", "eth0")));
    make(&mut world, add(AT, port("A1", "mlx5_0", 1)));
    let before = world.smc(Some(pod));
    make(
        &mut world,
        move_rdma("mlx5_0", NetnsSide::Host, NetnsSide::Pod),
    );
    make(&mut world, into_pod("eth0", "rdma0"));
    assert_eq!(world.smc(Some(pod)), before);
}

#[test]
fn one_entry_per_netdev_and_per_device() {
    let (mut world, _) = exclusive();
    make(&mut world, add(AT, netdev("A1", "eth0")));
    make(&mut world, add(AT, port("A1", "mlx5_0", 1)));
    // the same again is no error
    make(&mut world, add(AT, netdev("A1", "eth0")));
    make(&mut world, add(AT, port("A1", "mlx5_0", 1)));
    for other in [
        netdev("B2", "eth0"),
        port("B2", "mlx5_0", 1),
        port("A1", "mlx5_0", 2),
    ] {
        assert_eq!(errno(&mut world, add(AT, other)), Errno::EEXIST);
    }
    assert_eq!(world.smc(None).expect("a kernel with SMC").host.len(), 2);
}

#[test]
fn all_of_an_id_are_removed_in_one_namespace() {
    let (mut world, pod) = exclusive();
    for entry in [
        netdev("A1", "eth0"),
        netdev("A1", "eth1"),
        port("A1", "mlx5_0", 1),
        netdev("B2", "eth2"),
    ] {
        make(&mut world, add(AT, entry));
    }
    make(&mut world, add(NetnsSide::Pod, netdev("A1", "eth0")));
    make(&mut world, remove(AT, "A1"));
    make(&mut world, remove(AT, "A1"));
    let state = world.smc(Some(pod)).expect("a kernel with SMC");
    assert_eq!(state.host, [netdev("B2", "eth2")]);
    assert_eq!(state.pod, [netdev("A1", "eth0")]);
}

#[test]
fn four_user_eids_for_the_whole_node() {
    let (mut world, pod) = exclusive();
    for number in 0..4 {
        make(&mut world, add_ueid(&format!("EID{number}")));
    }
    make(&mut world, add_ueid("EID0"));
    assert_eq!(errno(&mut world, add_ueid("EID4")), Errno::ERANGE);
    assert_eq!(world.smc(Some(pod)).expect("SMC").ueids.len(), 4);
    let gone = || Op::RemoveUeid {
        ueid: "EID0".to_owned(),
    };
    make(&mut world, gone());
    make(&mut world, gone());
    for wrong in ["", "eid", "-EID", "E ID", &"E".repeat(33)] {
        assert_eq!(
            errno(&mut world, add_ueid(wrong)),
            Errno::EINVAL,
            "{wrong:?}"
        );
    }
    make(&mut world, add_ueid("E.ID-4"));
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
fn a_held_connection_is_told() {
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
fn max_links_are_the_pods_and_only_where_the_kernel_has_the_setting() {
    let (mut world, pod) = exclusive();
    let one = || Op::SetMaxLinks { links: 1 };
    let links = |world: &World| world.smc(Some(pod)).expect("SMC").max_links;
    assert_eq!(links(&world), Some(2));
    make(&mut world, one());
    assert_eq!(links(&world), Some(1));
    assert_eq!(world.smc(None).expect("SMC").max_links, None);
    world.smc = Some(Smc {
        lacks_max_links: true,
        ..Smc::default()
    });
    assert_eq!(links(&world), None);
    assert_eq!(errno(&mut world, one()), Errno::ENOENT);
}
