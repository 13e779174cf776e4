// SPDX-License-Identifier: Apache-2.0
//! Short constructors of changes ([`Op`]), and short views of a netdev.

use rdma_netns::{
    Address, Child, InterfaceName, Link, LinkChange, LinkFlag, LinkSetting, MacvlanMode, NetnsSide,
    Op, Route, Rule, link::IFA_F_NODAD,
};
use std::net::IpAddr;

/// The host's namespace.
pub const HOST: NetnsSide = NetnsSide::Host;
/// The pod's namespace.
pub const POD: NetnsSide = NetnsSide::Pod;
/// A macvlan child that can communicate with its siblings (mode `bridge`).
pub const BRIDGE: Child = Child::Macvlan {
    mode: MacvlanMode::Bridge,
};

/// A netdev's name.
pub fn name(text: &str) -> InterfaceName {
    text.try_into().expect("an interface name")
}

/// An IP address.
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}

/// Parses `IP/PREFIX`.
pub fn address(text: &str) -> Address {
    let (address, prefix) = text.split_once('/').expect("a prefix");
    Address::new(ip(address), prefix.parse().expect("a length"))
}

/// Parses `IP/PREFIX`, an address without duplicate address detection.
pub fn nodad(text: &str) -> Address {
    Address {
        flags: IFA_F_NODAD,
        ..address(text)
    }
}

/// Returns the route to `DESTINATION/PREFIX`, directly on the link or by a gateway.
pub fn route(destination: &str, gateway: Option<&str>) -> Route {
    let Address { ip: to, prefix, .. } = address(destination);
    Route {
        gateway: gateway.map(ip),
        ..Route::new(to, prefix)
    }
}

/// Returns the rule for packets from `FROM/PREFIX`, which looks up table 1000.
pub fn rule(from: &str, priority: u32) -> Rule {
    let Address { ip, prefix, .. } = address(from);
    Rule {
        from: ip,
        prefix,
        to: None,
        table: 1000,
        priority,
    }
}

/// Sets a netdev of the host up or down.
pub fn up(link: &str, up: bool) -> Op {
    up_at(HOST, link, up)
}

/// Sets a netdev up or down.
pub fn up_at(at: NetnsSide, link: &str, up: bool) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Up(up),
    }
}

/// Adds an address to a netdev of the host.
pub fn add(link: &str, address: Address) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::AddAddress(address),
    }
}

/// Removes an address from a netdev of the host.
pub fn remove(link: &str, address: Address) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::RemoveAddress(address),
    }
}

/// Adds a route to a netdev of the host.
pub fn add_route(link: &str, route: Route) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::AddRoute(route),
    }
}

/// Removes a route from a netdev of the host.
pub fn remove_route(link: &str, route: Route) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::RemoveRoute(route),
    }
}

/// Sets a netdev's MTU.
pub fn mtu(at: NetnsSide, link: &str, mtu: u32) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Mtu(mtu),
    }
}

/// Renames a netdev of the host.
pub fn rename(from: &str, to: &str) -> Op {
    let (at, link, name) = (HOST, name(from), name(to));
    Op::Link {
        at,
        link,
        change: LinkChange::Rename(name),
    }
}

/// Adds (`present`) or removes an alternative name of a netdev of the host.
pub fn alt_name(link: &str, alternative: &str, present: bool) -> Op {
    Op::Link {
        at: HOST,
        link: name(link),
        change: LinkChange::AltName {
            name: alternative.to_owned(),
            present,
        },
    }
}

/// Sets a flag of a netdev of the host.
pub fn flag(link: &str, flag: LinkFlag, on: bool) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::Flag(flag, on),
    }
}

/// Sets a sysctl of a netdev of the host.
pub fn sysctl(link: &str, key: &str, value: i32) -> Op {
    Op::Link {
        at: HOST,
        link: name(link),
        change: LinkChange::Sysctl {
            key: key.to_owned(),
            value,
        },
    }
}

/// Makes a child of a netdev of the host in the pod.
pub fn add_child(parent: &str, child: Child, to: &str) -> Op {
    Op::AddChild {
        at: NetnsSide::Pod,
        parent: name(parent),
        child,
        name: name(to),
        mtu: 1500,
    }
}

/// Removes a netdev.
pub fn remove_link(at: NetnsSide, link: &str) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Remove,
    }
}

/// Sets a numeric attribute of a netdev.
pub fn setting(at: NetnsSide, link: &str, setting: LinkSetting, value: u32) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Setting(setting, value),
    }
}

/// Moves a netdev of the host to the pod, with the name `to`.
pub fn into_pod(link: &str, to: &str) -> Op {
    let (from, to_side) = (HOST, POD);
    Op::MoveLink {
        link: name(link),
        from,
        to: to_side,
        name: name(to),
    }
}

/// Moves a netdev of the pod to the host, with the name `to`.
pub fn to_host(link: &str, to: &str) -> Op {
    let (from, to_side) = (POD, HOST);
    Op::MoveLink {
        link: name(link),
        from,
        to: to_side,
        name: name(to),
    }
}

/// Moves an RDMA device.
pub fn move_rdma(device: &str, from: NetnsSide, to: NetnsSide) -> Op {
    let device = device.to_owned();
    Op::MoveRdma { device, from, to }
}

/// Returns the netdev's addresses as `IP/PREFIX`.
pub fn texts(link: &Link) -> Vec<String> {
    let texts = link.addresses.iter();
    texts.map(|it| format!("{}/{}", it.ip, it.prefix)).collect()
}

/// Returns the addresses that the kernel did not make, as `IP/PREFIX`.
pub fn given(link: &Link) -> Vec<String> {
    let given = link.addresses.iter().filter(|it| !it.automatic);
    given.map(|it| format!("{}/{}", it.ip, it.prefix)).collect()
}

/// Returns the netdev's routes as `DESTINATION/PREFIX`.
pub fn destinations(link: &Link) -> Vec<String> {
    let routes = link.routes.iter();
    routes
        .map(|it| format!("{}/{}", it.destination, it.prefix))
        .collect()
}
