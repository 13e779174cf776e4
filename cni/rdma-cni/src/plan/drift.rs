//! A change that would have to be made, told as what is wrong.

use rdma_netns::{LinkFlag, Observed, Op};

/// What is wrong, given that `op` would put it right.
pub fn words(op: &Op, observed: &Observed) -> String {
    let present = |at, name: &str| observed.at(at).and_then(|namespace| namespace.link(name));
    match op {
        Op::MoveRdma { device, .. } => format!("RDMA device {device} is not in the pod"),
        Op::MoveLink { link, name, .. } => {
            format!("{link} is on the host, not in the pod as {name}")
        }
        Op::RenameLink { link, name, .. } => format!("{name} is called {link} now"),
        Op::SetUp { link, up, .. } => format!("{link} is {}", if *up { "down" } else { "up" }),
        Op::SetMtu { at, link, mtu } => match present(*at, link) {
            Some(present) => format!("the MTU of {link} is {}, not {mtu}", present.mtu),
            None => format!("the MTU of {link} is not {mtu}"),
        },
        Op::SetMac { link, mac, .. } => format!("the hardware address of {link} is not {mac}"),
        Op::SetTxQueueLen { link, packets, .. } => {
            format!("the transmit queue of {link} is not {packets} packets long")
        }
        Op::SetFlag { link, flag, on, .. } => {
            let flag = match flag {
                LinkFlag::Promisc => "promiscuous mode",
                LinkFlag::AllMulti => "reception of all multicast",
                LinkFlag::Multicast => "multicast",
                LinkFlag::NoArp => "NOARP",
            };
            format!("{flag} of {link} is {}", if *on { "off" } else { "on" })
        }
        Op::SetAlias { link, .. } => format!("{link} has another alias"),
        Op::SetAltName {
            link,
            name,
            present,
            ..
        } => {
            let verb = if *present { "has lost" } else { "has got" };
            format!("{link} {verb} the alternative name {name}")
        }
        Op::SetSysctl {
            at,
            link,
            key,
            value,
        } => {
            let (family, key_name) = key.split_once('/').unwrap_or(("", key));
            let setting = format!("net.{family}.conf.{link}.{key_name}");
            match present(*at, link).and_then(|present| present.sysctls.get(key)) {
                Some(present) => format!("{setting} is {present}, not {value}"),
                None => format!("{setting} is not {value}"),
            }
        }
        Op::AddAddress { link, address, .. } => {
            format!(
                "{link} has lost its address {}/{}",
                address.ip, address.prefix
            )
        }
        Op::RemoveAddress { link, address, .. } => {
            format!(
                "{link} has got the address {}/{}",
                address.ip, address.prefix
            )
        }
        Op::AddRoute { link, route, .. } => {
            format!(
                "{link} has lost its route to {}/{}",
                route.destination, route.prefix
            )
        }
        Op::RemoveRoute { link, route, .. } => {
            format!(
                "{link} has got a route to {}/{}",
                route.destination, route.prefix
            )
        }
    }
}
