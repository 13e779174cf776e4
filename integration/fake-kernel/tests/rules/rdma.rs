// SPDX-License-Identifier: Apache-2.0
//! RDMA devices.

use super::*;

const INTO: (NetnsSide, NetnsSide) = (NetnsSide::Host, NetnsSide::Pod);
const HOME: (NetnsSide, NetnsSide) = (NetnsSide::Pod, NetnsSide::Host);

fn go(device: &str, (from, to): (NetnsSide, NetnsSide)) -> Op {
    move_rdma(device, from, to)
}

fn uverbs(world: &World, netns: Option<NetnsId>, device: &str) -> String {
    let observed = world.observe(netns);
    let mut seen = observed
        .pod
        .into_iter()
        .chain([observed.host])
        .flat_map(|n| n.rdma);
    let device = seen
        .find(|other| other.name == device)
        .expect("an RDMA device");
    device.char_devices[0].name.clone()
}

#[test]
fn in_shared_mode_all_see_all_and_none_moves() {
    let (mut world, pod) = world(RdmaMode::Shared);
    assert_eq!(world.observe(Some(pod)).pod.unwrap().rdma.len(), 2);
    assert_eq!(errno(&mut world, go("mlx5_0", INTO)), Errno::EOPNOTSUPP);
}

#[test]
fn sysfs_shows_a_device_that_is_in_a_pod() {
    let (mut world, pod) = exclusive();
    make(&mut world, go("mlx5_0", INTO));
    let observed = world.observe(Some(pod));
    assert_eq!(observed.devices[0].rdma, ["mlx5_0"]);
}

#[test]
fn a_driver_that_cannot_let_go_stays() {
    let (mut world, _) = exclusive();
    world.plug(
        Nic::virtual_link("eth9", "veth")
            .with_soft_rdma("rxe0")
            .immovable(),
    );
    assert_eq!(errno(&mut world, go("rxe0", INTO)), Errno::EOPNOTSUPP);
}

#[test]
fn without_a_subsystem_there_is_no_protocol() {
    let mut world = World::new(None);
    world.create_namespace("/run/netns/pod");
    assert_eq!(
        errno(&mut world, go("mlx5_0", INTO)),
        Errno::EPROTONOSUPPORT
    );
}

#[test]
fn a_move_takes_the_lowest_free_number() {
    let (mut world, pod) = exclusive();
    world.plug(Nic::physical("0000:03:00.0", "eth2", "mlx5_2"));
    make(&mut world, go("mlx5_2", INTO));
    assert_eq!(uverbs(&world, Some(pod), "mlx5_2"), "uverbs2");
    world.unplug("0000:01:00.0");
    make(&mut world, go("mlx5_2", HOME));
    assert_eq!(uverbs(&world, None, "mlx5_2"), "uverbs0");
    assert_eq!(uverbs(&world, None, "mlx5_1"), "uverbs1");
}

#[test]
fn udev_may_be_late() {
    let (mut world, pod) = exclusive();
    world.udev = 2;
    make(&mut world, go("mlx5_0", INTO));
    let in_place = |world: &World| {
        let seen = world.observe(Some(pod)).pod.unwrap();
        seen.rdma[0].char_devices[0].is_in_place()
    };
    assert!(!in_place(&world));
    (0..2).for_each(|_| world.pass_time());
    assert!(in_place(&world));
}

#[test]
fn the_mode_changes_only_before_there_are_namespaces() {
    let (mut world, _) = world(RdmaMode::Shared);
    let refused = world.set_rdma_mode(RdmaMode::Exclusive).unwrap_err();
    assert_eq!(refused.errno, Errno::EBUSY);
    world.unmount("/run/netns/pod");
    world.set_rdma_mode(RdmaMode::Exclusive).unwrap();
}

#[test]
fn ipoib_is_made_anew_with_its_device() {
    for follows in [false, true] {
        let mut world = World::new(Some(RdmaMode::Exclusive));
        world.ipoib_follows_rdma = follows;
        ipoib_is_made_anew(world);
    }
}

fn ipoib_is_made_anew(mut world: World) {
    world.plug(Nic::infiniband("0000:01:00.0", "mlx5_0"));
    world.plug(Nic::virtual_link("ib1", "dummy"));
    let pod = world.create_namespace("/run/netns/pod");
    let (link, new) = (name("ib0"), name("ibp1s0"));
    make(
        &mut world,
        Op::Link {
            at: AT,
            link,
            change: LinkChange::Rename(new),
        },
    );
    make(&mut world, up("ibp1s0", true));
    let before = host(&world, "ibp1s0").clone();
    make(&mut world, go("mlx5_0", INTO));
    let (at, netns) = match world.ipoib_follows_rdma {
        true => (NetnsSide::Pod, pod),
        false => (NetnsSide::Host, HOST),
    };
    let after = world.link(netns, "ib0").expect("a new netdev");
    assert!(!after.up && world.link(HOST, "ibp1s0").is_none());
    // the new netdev has another queue pair, but the same port GUID
    assert_ne!(before.mac.0[..12], after.mac.0[..12]);
    assert_eq!(before.mac.0[12..], after.mac.0[12..]);
    let old = Op::Link {
        at,
        link: name("ib0"),
        change: LinkChange::Mac(before.mac),
    };
    assert_eq!(errno(&mut world, old), Errno::EINVAL);
}
