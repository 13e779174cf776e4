// SPDX-License-Identifier: Apache-2.0
//! Changes, in few words, and what is seen of them.

use rdma_netns::{
    Address, Child, InterfaceName, Link, LinkChange, LinkFlag, LinkSetting, MacvlanMode, NetnsSide,
    Op, Route, Rule, link::IFA_F_NODAD,
};
use std::net::IpAddr;

/// The side of the host.
pub const HOST: NetnsSide = NetnsSide::Host;
/// The side of the pod.
pub const POD: NetnsSide = NetnsSide::Pod;
/// A macvlan child that its siblings reach.
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

/// `IP/PREFIX`
pub fn address(text: &str) -> Address {
    let (address, prefix) = text.split_once('/').expect("a prefix");
    Address::new(ip(address), prefix.parse().expect("a length"))
}

/// `IP/PREFIX`, for which no duplicate is looked for.
pub fn nodad(text: &str) -> Address {
    Address {
        flags: IFA_F_NODAD,
        ..address(text)
    }
}

/// `DESTINATION/PREFIX`, by the link alone or by a gateway.
pub fn route(destination: &str, gateway: Option<&str>) -> Route {
    let Address { ip: to, prefix, .. } = address(destination);
    Route {
        gateway: gateway.map(ip),
        ..Route::new(to, prefix)
    }
}

/// `FROM/PREFIX`, by table 1000.
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

/// A netdev of the host goes up or down.
pub fn up(link: &str, up: bool) -> Op {
    up_at(HOST, link, up)
}

/// A netdev goes up or down.
pub fn up_at(at: NetnsSide, link: &str, up: bool) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Up(up),
    }
}

/// An address for a netdev of the host.
pub fn add(link: &str, address: Address) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::AddAddress(address),
    }
}

/// An address that a netdev of the host has no longer.
pub fn remove(link: &str, address: Address) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::RemoveAddress(address),
    }
}

/// A route by a netdev of the host.
pub fn add_route(link: &str, route: Route) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::AddRoute(route),
    }
}

/// A route that a netdev of the host has no longer.
pub fn remove_route(link: &str, route: Route) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::RemoveRoute(route),
    }
}

/// The MTU of a netdev.
pub fn mtu(at: NetnsSide, link: &str, mtu: u32) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Mtu(mtu),
    }
}

/// A netdev of the host is called otherwise.
pub fn rename(from: &str, to: &str) -> Op {
    let (at, link, name) = (HOST, name(from), name(to));
    Op::Link {
        at,
        link,
        change: LinkChange::Rename(name),
    }
}

/// An alternative name of a netdev of the host.
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

/// A flag of a netdev of the host.
pub fn flag(link: &str, flag: LinkFlag, on: bool) -> Op {
    let (at, link) = (HOST, name(link));
    Op::Link {
        at,
        link,
        change: LinkChange::Flag(flag, on),
    }
}

/// A setting of a netdev of the host.
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

/// A child of a netdev of the host, in the pod.
pub fn add_child(parent: &str, child: Child, to: &str) -> Op {
    Op::AddChild {
        at: NetnsSide::Pod,
        parent: name(parent),
        child,
        name: name(to),
        mtu: 1500,
    }
}

/// The end of a netdev.
pub fn remove_link(at: NetnsSide, link: &str) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Remove,
    }
}

/// A number of a netdev.
pub fn setting(at: NetnsSide, link: &str, setting: LinkSetting, value: u32) -> Op {
    let link = name(link);
    Op::Link {
        at,
        link,
        change: LinkChange::Setting(setting, value),
    }
}

/// A netdev goes to the pod.
pub fn into_pod(link: &str, to: &str) -> Op {
    let (from, to_side) = (HOST, POD);
    Op::MoveLink {
        link: name(link),
        from,
        to: to_side,
        name: name(to),
    }
}

/// A netdev goes to the host.
pub fn to_host(link: &str, to: &str) -> Op {
    let (from, to_side) = (POD, HOST);
    Op::MoveLink {
        link: name(link),
        from,
        to: to_side,
        name: name(to),
    }
}

/// An RDMA device goes to the other side.
pub fn move_rdma(device: &str, from: NetnsSide, to: NetnsSide) -> Op {
    let device = device.to_owned();
    Op::MoveRdma { device, from, to }
}

/// Addresses as `IP/PREFIX`.
pub fn texts(link: &Link) -> Vec<String> {
    let texts = link.addresses.iter();
    texts.map(|it| format!("{}/{}", it.ip, it.prefix)).collect()
}

/// Addresses that the kernel did not make, as `IP/PREFIX`.
pub fn given(link: &Link) -> Vec<String> {
    let given = link.addresses.iter().filter(|it| !it.automatic);
    given.map(|it| format!("{}/{}", it.ip, it.prefix)).collect()
}

/// Routes as `DESTINATION/PREFIX`.
pub fn destinations(link: &Link) -> Vec<String> {
    let routes = link.routes.iter();
    routes
        .map(|it| format!("{}/{}", it.destination, it.prefix))
        .collect()
}
