// SPDX-License-Identifier: Apache-2.0
//! Tests of announcements to a neighbour that has another hardware address in its cache.

use crate::world::{World, interface, to_pod, with_node};
use nix::libc;
use rdma_netns::{InterfaceName, LinkChange, NetnsSide, Op};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

const ADDRESSES: [&str; 2] = ["10.1.0.5", "fd01::5"];
const OLD: &str = "02:00:00:00:00:99";

/// Runs `test` with a pod that has `wire0`. The node's neighbour cache has the hardware address [`OLD`] for
/// [`ADDRESSES`].
fn with_neighbour(test: impl FnOnce(&World) + Send) {
    with_node(|world| {
        world.ip("address add 10.1.0.1/24 dev nic0");
        world.ip("address add fd01::1/64 dev nic0 nodad");
        world.execute(to_pod("wire0", "wire0"));
        world.pod_ip("link set wire0 up");
        // the kernel sends no neighbour advertisement for an address that the pod does not have
        world.pod_ip("address add fd01::5/64 dev wire0 nodad");
        forget(world);
        test(world);
    });
}

/// Restores the outdated entries in the node's neighbour cache.
fn forget(world: &World) {
    for address in ADDRESSES {
        world.ip(&format!(
            "neighbour replace {address} lladdr {OLD} nud reachable dev nic0"
        ));
    }
}

fn announce(at: NetnsSide, link: &InterfaceName, address: &str) -> Op {
    Op::Link {
        at,
        link: link.clone(),
        change: LinkChange::Announce(address.parse().expect("an IP address")),
    }
}

/// Time for which a test waits to see that the node learns nothing.
const LEARNT: Duration = Duration::from_millis(500);

/// Time limit for the node to learn from an announcement, on a slow machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Returns true if the node's neighbour cache has `address` with `mac` within `limit`.
fn is_known_at(world: &World, address: &str, mac: &str, limit: Duration) -> bool {
    let begin = Instant::now();
    loop {
        let text = world.ip(&format!("neighbour show {address} dev nic0"));
        if text.contains(&format!("lladdr {mac} ")) {
            return true;
        }
        if begin.elapsed() > limit {
            return false;
        }
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_neighbour_learns_the_new_hardware_address() {
    with_neighbour(|world| {
        let mac = world.pod_link("wire0").mac.to_string();
        // a netdev whose name is not UTF-8 is found by its index
        let number = InterfaceName::of_index(world.pod_link("wire0").index);
        for link in [interface("wire0"), number] {
            forget(world);
            for address in ADDRESSES {
                assert!(is_known_at(world, address, OLD, LIMIT));
                world.execute(announce(NetnsSide::Pod, &link, address));
                assert!(is_known_at(world, address, &mac, LIMIT), "{address}");
            }
        }
    });
}

/// A child announces its own hardware address, and not its lower netdev's.
#[test]
fn a_child_announces_itself() {
    with_node(|world| {
        world.execute(to_pod("wire0", "wire0"));
        world.pod_ip("link set wire0 up");
        for (line, neighbour) in [
            ("address add 10.1.0.1/24 dev wire0", ADDRESSES[0]),
            ("address add fd01::1/64 dev wire0 nodad", ADDRESSES[1]),
        ] {
            world.pod_ip(line);
            world.pod_ip(&format!(
                "neighbour replace {neighbour} lladdr {OLD} nud reachable dev wire0"
            ));
        }
        world.ip("link add link nic0 name child0 type macvlan mode bridge");
        world.ip("link set child0 up");
        world.ip("address add fd01::5/64 dev child0 nodad");
        let child = world.host_link("child0");
        for address in ADDRESSES {
            world.execute(announce(NetnsSide::Host, &child.name, address));
            let begin = Instant::now();
            let known = || world.pod_ip(&format!("neighbour show {address} dev wire0"));
            while !known().contains(&child.mac.to_string()) {
                assert!(begin.elapsed() < LIMIT, "{}", known());
                sleep(Duration::from_millis(10));
            }
        }
    });
}

#[test]
fn nothing_is_sent_where_nobody_would_listen() {
    with_neighbour(|world| {
        let mac = world.pod_link("wire0").mac.to_string();
        for line in ["link set wire0 arp off", "link set wire0 down arp on"] {
            world.pod_ip(line);
            for address in ADDRESSES {
                for link in ["wire0", "lo"] {
                    world.execute(announce(NetnsSide::Pod, &interface(link), address));
                }
                assert!(
                    !is_known_at(world, address, &mac, LEARNT),
                    "{line}: {address}"
                );
            }
        }
    });
}

#[test]
fn a_link_that_is_not_there() {
    with_neighbour(|world| {
        for address in ADDRESSES {
            let error = world.refused(announce(NetnsSide::Pod, &interface("wire1"), address));
            assert_eq!(error.errno(), Some(libc::ENODEV), "{error}");
        }
    });
}
