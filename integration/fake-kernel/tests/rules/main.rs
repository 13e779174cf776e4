// SPDX-License-Identifier: Apache-2.0
//! Tests of the kernel's rules. The tests in `suite` also run on the real kernel, with the same code. The other tests
//! need objects that not every machine has, or test rules that only the fake kernel has.

mod addresses;
mod bonds;
mod children;
mod ends;
mod gids;
mod ipoib;
mod links;
mod rdma;
mod rules;
mod seam;
mod smc;
mod suite;

use fake_kernel::{Nic, World, world::HOST};
use nix::errno::Errno;
use rdma_netns::{
    Address, Child, InterfaceName, Link, LinkChange, MacvlanMode, NetnsId, NetnsSide, Op, RdmaMode,
};

const AT: NetnsSide = NetnsSide::Host;

/// Returns a world with `eth0` (a NIC with RDMA device `mlx5_0`), `eth1` (`mlx5_1`) and a pod.
fn world(mode: RdmaMode) -> (World, NetnsId) {
    let mut world = World::new(Some(mode));
    world.plug(Nic::physical("0000:01:00.0", "eth0", "mlx5_0"));
    world.plug(Nic::physical("0000:02:00.0", "eth1", "mlx5_1"));
    let pod = world.create_namespace("/run/netns/pod");
    (world, pod)
}

fn exclusive() -> (World, NetnsId) {
    world(RdmaMode::Exclusive)
}

/// Returns a world whose `eth0` is up and has an address of each family. Duplicate address detection has ended.
fn addressed() -> (World, NetnsId) {
    let (mut world, pod) = exclusive();
    make(&mut world, up("eth0", true));
    make(&mut world, add_address("eth0", "10.0.0.5/24"));
    make(&mut world, add_address("eth0", "fd00::5/64"));
    (0..world.detection).for_each(|_| world.pass_time());
    (world, pod)
}

#[track_caller]
fn make(world: &mut World, op: Op) {
    let pod = world.namespace_at("/run/netns/pod");
    let done = world.execute(&op, pod);
    done.unwrap_or_else(|refusal| panic!("{op}: {refusal}"));
}

fn errno(world: &mut World, op: Op) -> Errno {
    let pod = world.namespace_at("/run/netns/pod");
    let refusal = world.execute(&op, pod);
    refusal.expect_err("it is refused").errno
}

fn host<'a>(world: &'a World, name: &str) -> &'a Link {
    world.link(HOST, name).expect("a netdev of the host")
}

fn name(text: &str) -> InterfaceName {
    text.try_into().expect("an interface name")
}

fn address(text: &str) -> Address {
    let (ip, prefix) = text.split_once('/').expect("a prefix");
    Address::new(
        ip.parse().expect("an address"),
        prefix.parse().expect("a length"),
    )
}

fn up(link: &str, up: bool) -> Op {
    let link = name(link);
    Op::Link {
        at: AT,
        link,
        change: LinkChange::Up(up),
    }
}

fn add_address(link: &str, text: &str) -> Op {
    let (link, address) = (name(link), address(text));
    Op::Link {
        at: AT,
        link,
        change: LinkChange::AddAddress(address),
    }
}

const BRIDGE: Child = Child::Macvlan {
    mode: MacvlanMode::Bridge,
};

/// Returns the operation that makes a child of `parent` in the pod, with an MTU of 1500.
fn add_child(parent: &str, child: Child, to: &str) -> Op {
    Op::AddChild {
        at: NetnsSide::Pod,
        parent: name(parent),
        child,
        name: name(to),
        mtu: 1500,
    }
}

fn remove_link(at: NetnsSide, link: &str) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Remove,
    }
}

/// Returns `op`, which sets a netdev up or adds an address, in the pod instead of on the host.
fn in_pod(op: Op) -> Op {
    let at = NetnsSide::Pod;
    match op {
        Op::Link {
            link,
            change: LinkChange::Up(up),
            ..
        } => Op::Link {
            at,
            link,
            change: LinkChange::Up(up),
        },
        Op::Link {
            link,
            change: LinkChange::AddAddress(address),
            ..
        } => Op::Link {
            at,
            link,
            change: LinkChange::AddAddress(address),
        },
        other => other,
    }
}

fn into_pod(link: &str, to: &str) -> Op {
    Op::MoveLink {
        link: name(link),
        from: NetnsSide::Host,
        to: NetnsSide::Pod,
        name: name(to),
    }
}

fn to_host(link: &str, to: &str) -> Op {
    Op::MoveLink {
        link: name(link),
        from: NetnsSide::Pod,
        to: NetnsSide::Host,
        name: name(to),
    }
}

fn move_rdma(device: &str, from: NetnsSide, to: NetnsSide) -> Op {
    let device = device.to_owned();
    Op::MoveRdma { device, from, to }
}

/// Returns the netdev's addresses as `ip/prefix`.
fn texts(link: &Link) -> Vec<String> {
    let addresses = link.addresses.iter();
    addresses
        .map(|a| format!("{}/{}", a.ip, a.prefix))
        .collect()
}
