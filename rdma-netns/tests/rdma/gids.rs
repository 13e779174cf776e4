// SPDX-License-Identifier: Apache-2.0
//! Tests of GID tables: addresses get GIDs, namespaces see the GIDs, and a read leaves no mount.

use super::*;
use rdma_netns::{Address, Child, Gid, GidKind, GidTable, MacvlanMode, link::IFA_F_NODAD};
use std::{net::IpAddr, thread::sleep, time::Duration};

const ADDRESSES: [(&str, u8); 2] = [("10.9.0.5", 24), ("fd09::5", 64)];

/// Adds [`ADDRESSES`] to `link` in the pod, and sets `link` up.
fn address(world: &World, pod: &Space, link: &str) {
    let execute = |op: Op| {
        let done = world.kernel.execute(&op, Some(pod));
        done.unwrap_or_else(|error| panic!("{error}"));
    };
    let at = NetnsSide::Pod;
    execute(Op::Link {
        at,
        link: interface(link),
        change: LinkChange::Up(true),
    });
    for (ip, prefix) in ADDRESSES {
        execute(Op::Link {
            at,
            link: interface(link),
            change: LinkChange::AddAddress(Address {
                flags: if ip.contains(':') { IFA_F_NODAD } else { 0 },
                ..Address::new(ip.parse().expect("an address"), prefix)
            }),
        });
    }
}

fn find(table: &GidTable, ip: &str) -> Option<Gid> {
    let ip: IpAddr = ip.parse().expect("an address");
    table.all(ip, GidKind::RoceV2).next().cloned()
}

/// Waits until all of [`ADDRESSES`] have their GIDs (`present`), or have lost them.
#[track_caller]
fn wait(present: bool, read: impl Fn() -> GidTable) -> GidTable {
    let begin = Instant::now();
    loop {
        let table = read();
        let found = |(ip, _): &(&str, u8)| find(&table, ip).is_some();
        if ADDRESSES.iter().all(|address| found(address) == present) {
            println!("{:>8} us  present: {present}", begin.elapsed().as_micros());
            return table;
        }
        assert!(begin.elapsed().as_secs() < 60, "{table:#?}");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn in_shared_mode_a_childs_gids_are_seen_in_the_pod_too() {
    set_mode(RdmaMode::Shared);
    let world = World::new("rdma-child-gids");
    let pod = world.pod();
    let add = Op::AddChild {
        at: NetnsSide::Pod,
        parent: interface("nic0"),
        child: Child::Macvlan {
            mode: MacvlanMode::Bridge,
        },
        name: interface("rdma0"),
        mtu: 1500,
    };
    world.kernel.execute(&add, Some(&pod)).expect("a child");
    let read = || world.kernel.gids(None, "rxe0", 1).expect("a table");
    let before = read();
    println!("{before:#?}");
    assert!(before.size >= 16);
    address(&world, &pod, "rdma0");
    let table = wait(true, read);
    let inside = world.kernel.gids(Some(&pod), "rxe0", 1);
    assert_eq!(inside.expect("a table"), table);
    let (at, link) = (NetnsSide::Pod, interface("rdma0"));
    let remove = Op::Link {
        at,
        link,
        change: LinkChange::Remove,
    };
    world.kernel.execute(&remove, Some(&pod)).expect("removed");
    assert_eq!(wait(false, read), before);
    drop((pod, world));
    set_mode(RdmaMode::Exclusive);
}

#[test]
fn no_mount_of_an_observation_stays() {
    let world = World::new("rdma-moved-gids");
    let pod = world.pod();
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    for op in [
        Op::MoveRdma {
            device: "rxe0".to_owned(),
            from,
            to,
        },
        Op::MoveLink {
            link: interface("nic0"),
            from,
            to,
            name: interface("rdma0"),
        },
    ] {
        let done = world.kernel.execute(&op, Some(&pod));
        done.unwrap_or_else(|error| panic!("{error}"));
    }
    address(&world, &pod, "rdma0");
    wait(true, || {
        let table = world.kernel.gids(Some(&pod), "rxe0", 1);
        table.expect("a table")
    });
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    let sysfs = mounts.lines().filter(|line| line.contains(" /sys sysfs "));
    assert_eq!(sysfs.count(), 1);
}

#[test]
fn looking_at_gids_is_quick() {
    let world = World::new("rdma-quick-gids");
    let pod = world.pod();
    let (from, to) = (NetnsSide::Host, NetnsSide::Pod);
    let device = "rxe1".to_owned();
    let op = Op::MoveRdma { device, from, to };
    world.kernel.execute(&op, Some(&pod)).expect("moved");
    for (device, pod) in [("rxe0", None), ("rxe1", Some(&pod))] {
        let mut size = 0;
        let mut times: Vec<_> = (0..20)
            .map(|_| {
                let begin = Instant::now();
                size = world.kernel.gids(pod, device, 1).expect("a table").size;
                begin.elapsed().as_micros()
            })
            .collect();
        times.sort_unstable();
        println!(
            "{device}, {size} places: median {} us",
            times[times.len() / 2]
        );
    }
}
