// SPDX-License-Identifier: Apache-2.0
//! From what a NIC was given back to how it was before. Pure.
//!
//! Only what is as it was given goes: what somebody else has changed since is theirs, and told.

use super::{
    ownership::uppers,
    plan::{taken_address, taken_routes},
    record::Record,
};
use rdma_netns::{Address, Link, Namespace, NetnsSide, Op, Route};

/// What is to be done, and what is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutBack {
    /// The changes.
    pub ops: Vec<Op>,
    /// A sentence for each thing that stays, being somebody else's by now.
    pub left: Vec<String>,
}

/// What still differs between `link` and how `record` has it before it was brought up.
pub fn put_back(link: &Link, host: &Namespace, record: &Record) -> PutBack {
    let mut back = PutBack::default();
    let mut routes: Vec<&Route> = vec![];
    for route in record.gifts().flat_map(|given| &given.routes) {
        if !routes.contains(&route) {
            routes.push(route);
        }
    }
    back.ops.extend(taken_routes(link, routes.iter().copied()));
    back.addresses(link, record);
    let others = others(link, record, &routes);
    back.left
        .extend(others.iter().map(|it| format!("{it}, since: it stays")));
    let master = link.master.map(|master| host.link_by_index(master));
    if let Some(master) = master {
        let name = master.map_or("another netdev", |master| &master.name);
        let name = format!(
            "{} is a port of {name}, since: it stays up, with its MTU",
            link.name
        );
        back.left.push(name);
    } else if let Some(upper) = uppers(link, host).next() {
        // the kernel takes its MTU and its carrier from the one below
        back.left.push(format!(
            "{} lies on {}, since: that stays up, with its MTU",
            upper.name, link.name
        ));
    } else {
        back.up(link, record, others.is_empty());
        back.mtu(link, record);
    }
    back.settings(link, record);
    back
}

/// Addresses and routes that somebody else has given the netdev.
fn others(link: &Link, record: &Record, routes: &[&Route]) -> Vec<String> {
    let is_known = |it: &Address| {
        let mut known = record.before.addresses.iter();
        let gifts = || record.gifts().map(|given| &given.address);
        known.any(|known| known.same_as(it)) || gifts().any(|ours| is_as_given(it, ours))
    };
    let is_passing = |it: &Address| it.automatic || it.is_link_local();
    let addresses = link.addresses.iter();
    let addresses = addresses.filter(|it| !is_known(it) && !is_passing(it));
    let addresses = addresses.map(|it| format!("{} has {}/{}", link.name, it.ip, it.prefix));
    let strange = link.routes.iter();
    let strange = strange.filter(|it| !link.makes_itself(it) && !routes.contains(it));
    let strange = strange.map(|it| {
        let (to, prefix) = (it.destination, it.prefix);
        format!("{} has a route to {to}/{prefix}", link.name)
    });
    addresses.chain(strange).collect()
}

fn is_as_given(present: &Address, given: &Address) -> bool {
    present.same_as(given) && present.flags == given.flags && present.metric == given.metric
}

impl PutBack {
    fn addresses(&mut self, link: &Link, record: &Record) {
        let mut seen: Vec<&Address> = vec![];
        for given in record.gifts().map(|given| &given.address) {
            let present = link.address(given);
            if present.is_some_and(|it| is_as_given(it, given)) && !seen.contains(&given) {
                seen.push(given);
                self.ops.extend(taken_address(link, given));
            }
        }
    }

    /// Down, if it was, and nobody else needs it up.
    fn up(&mut self, link: &Link, record: &Record, is_ours_alone: bool) {
        if record.before.up || !link.up {
            return;
        }
        if is_ours_alone {
            self.ops.push(Op::SetUp {
                at: NetnsSide::Host,
                link: link.name.clone(),
                up: false,
            });
        } else {
            self.left.push(format!("{} stays up, for that", link.name));
        }
    }

    fn mtu(&mut self, link: &Link, record: &Record) {
        let mtu = record.before.mtu;
        if link.mtu == mtu {
            return;
        }
        if record.gifts().any(|given| given.mtu == Some(link.mtu)) {
            let link = link.name.clone();
            let at = NetnsSide::Host;
            self.ops.push(Op::SetMtu { at, link, mtu });
        } else {
            let words = format!("{} has MTU {}, since: it stays", link.name, link.mtu);
            self.left.push(words);
        }
    }

    fn settings(&mut self, link: &Link, record: &Record) {
        for (key, value) in &record.before.settings {
            let Some(present) = link.sysctls.get(key).filter(|it| *it != value) else {
                continue;
            };
            if record
                .gifts()
                .any(|given| given.settings.get(key) == Some(present))
            {
                self.ops.push(Op::SetSysctl {
                    at: NetnsSide::Host,
                    link: link.name.clone(),
                    key: key.clone(),
                    value: *value,
                });
            } else {
                let words = format!("{} has {key} = {present}, since: it stays", link.name);
                self.left.push(words);
            }
        }
    }
}
