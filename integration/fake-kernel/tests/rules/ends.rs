// SPDX-License-Identifier: Apache-2.0
//! The end of a namespace, the removal of a device, and a reboot.

use super::*;

#[test]
fn physical_netdevs_come_back_down_with_their_names() {
    let (mut world, _) = addressed();
    make(&mut world, into_pod("eth0", "rdma0"));
    world.unmount("/run/netns/pod");
    let link = host(&world, "rdma0");
    assert!(!link.up && link.addresses.is_empty());
    assert_eq!(link.sysctls.get("ipv4/rp_filter"), Some(&2));
}

#[test]
fn a_name_that_is_taken_becomes_dev_and_the_index() {
    let (mut world, _) = exclusive();
    make(&mut world, into_pod("eth0", "eth1"));
    world.unmount("/run/netns/pod");
    assert_eq!(host(&world, "dev2").parent.as_deref(), Some("0000:01:00.0"));
}

#[test]
fn where_that_is_taken_too_it_is_counted() {
    let (mut world, _) = exclusive();
    world.plug(Nic::virtual_link("dev2", "dummy"));
    make(&mut world, into_pod("eth0", "eth1"));
    world.unmount("/run/netns/pod");
    assert_eq!(host(&world, "dev0").parent.as_deref(), Some("0000:01:00.0"));
}

#[test]
fn alternative_names_that_are_taken_are_dropped() {
    let (mut world, _) = exclusive();
    make(&mut world, into_pod("eth0", "rdma0"));
    for text in ["eth1", "mine"] {
        let (link, name) = (name("rdma0"), text.to_owned());
        let (at, present) = (NetnsSide::Pod, true);
        make(
            &mut world,
            Op::Link {
                at,
                link,
                change: LinkChange::AltName { name, present },
            },
        );
    }
    world.unmount("/run/netns/pod");
    assert_eq!(host(&world, "rdma0").alt_names, ["mine"]);
}

#[test]
fn virtual_netdevs_end() {
    let (mut world, _) = exclusive();
    world.plug(Nic::virtual_link("veth0", "veth"));
    make(&mut world, into_pod("veth0", "veth0"));
    world.unmount("/run/netns/pod");
    assert!(world.link(HOST, "veth0").is_none());
}

#[test]
fn rdma_devices_come_back_with_the_lowest_free_number() {
    let (mut world, _) = exclusive();
    make(
        &mut world,
        move_rdma("mlx5_1", NetnsSide::Host, NetnsSide::Pod),
    );
    world.unplug("0000:01:00.0");
    world.unmount("/run/netns/pod");
    let rdma = world.observe(None).host.rdma;
    assert_eq!(rdma[0].char_devices[0].name, "uverbs0");
}

#[test]
fn an_inode_is_used_again_and_a_cookie_is_not() {
    let (mut world, old) = exclusive();
    world.unmount("/run/netns/pod");
    let new = world.create_namespace("/run/netns/pod");
    assert_eq!(old.inode, new.inode);
    assert_ne!(old.cookie, new.cookie);
}

#[test]
fn a_function_that_is_pulled_out_takes_its_devices_along() {
    let (mut world, pod) = exclusive();
    make(&mut world, into_pod("eth0", "rdma0"));
    world.unplug("0000:01:00.0");
    assert!(world.link(pod, "rdma0").is_none());
    assert_eq!(world.place_of_rdma("mlx5_0"), None);
}

#[test]
fn a_reboot_brings_back_what_was_when_it_was_switched_on() {
    let (mut world, old) = exclusive();
    world.unmount("/run/netns/pod");
    world.switch_on();
    let boot = world.boot_id();
    world.create_namespace("/run/netns/pod");
    make(&mut world, into_pod("eth0", "rdma0"));
    world.reboot();
    assert_ne!(world.boot_id(), boot);
    assert_eq!(world.namespace_at("/run/netns/pod"), None);
    host(&world, "eth0");
    let new = world.create_namespace("/run/netns/pod");
    assert_eq!(new.inode, old.inode);
}
