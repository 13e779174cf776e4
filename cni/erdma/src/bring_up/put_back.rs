// SPDX-License-Identifier: Apache-2.0
//! Plans how to restore a NIC's state from before the bring-up. This module has no I/O. The plan removes the daemon's
//! configuration. It keeps configuration that another program has changed, and reports it.

use super::{
    plan::{remove, routes_of, set_again},
    record::{RP_FILTER, Record},
};
use rdma_netns::{Address, Link, LinkChange, Namespace, NetnsSide, Op, Route};

/// Planned changes, and the differences that remain afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutBack {
    /// Changes that restore the state from before the bring-up.
    pub ops: Vec<Op>,
    /// A sentence for each difference that remains because of another program.
    pub left: Vec<String>,
}

/// Plans the changes of `link` that restore the state in `record`, from before the bring-up.
pub fn put_back(link: &Link, host: &Namespace, record: &Record) -> PutBack {
    let routes = routes_of(record.gifts());
    let given = record.gifts().map(|given| &given.address);
    let is_there = |it: &&Address| link.address(it).is_some_and(|there| is_as_given(there, it));
    let mut after = link.clone();
    let mut ops = remove(&mut after, record, &routes, given.filter(is_there));
    ops.extend(set_again(link, &after, record));
    let mut back = PutBack { ops, left: vec![] };
    let others = others(link, record, &routes);
    let is_ours_alone = others.is_empty() && record.lost.is_empty();
    back.left.extend(others);
    let master = link.master.map(|master| host.link_by_index(master));
    if let Some(master) = master {
        let name = master.map_or("another netdev", |master| &master.name);
        let name = format!(
            "{own} is a port of {name} now: {own} stays up and keeps its MTU",
            own = link.name
        );
        back.left.push(name);
    } else if let Some(upper) = link.above(&host.links) {
        // keep MTU and administrative state, because the upper netdev inherits MTU and carrier
        back.left.push(format!(
            "{} uses {name} now: {name} stays up and keeps its MTU",
            upper.name,
            name = link.name
        ));
    } else {
        back.up(link, record, is_ours_alone);
        back.mtu(link, record);
    }
    back.rp_filter(link, record);
    back
}

/// Returns a sentence for each address and route that another program has added.
fn others(link: &Link, record: &Record, routes: &[&Route]) -> Vec<String> {
    let is_known = |it: &Address| {
        let mut known = record.before.addresses.iter();
        let gifts = || record.gifts().map(|given| &given.address);
        known.any(|known| known.same_as(it)) || gifts().any(|ours| is_as_given(it, ours))
    };
    let is_automatic = |it: &Address| it.automatic || it.is_link_local();
    let addresses = link.addresses.iter();
    let addresses = addresses.filter(|it| !is_known(it) && !is_automatic(it));
    let addresses = addresses.map(|it| format!("{} has {}/{}", link.name, it.ip, it.prefix));
    let foreign = link.routes.iter();
    let foreign = foreign.filter(|it| !link.makes_itself(it) && !routes.contains(it));
    let foreign = foreign.map(|it| {
        let (to, prefix) = (it.destination, it.prefix);
        format!("{} has a route to {to}/{prefix}", link.name)
    });
    let others = addresses.chain(foreign);
    others
        .map(|it| format!("{it}, which another program added later: not removed"))
        .collect()
}

fn is_as_given(present: &Address, given: &Address) -> bool {
    present.same_as(given) && present.flags == given.flags && present.metric == given.metric
}

impl PutBack {
    fn change(&mut self, link: &Link, change: LinkChange) {
        self.ops.push(Op::link(NetnsSide::Host, &link.name, change));
    }

    /// Sets the netdev down if it was down before the bring-up. If another program uses the netdev (`is_ours_alone` is
    /// false), leaves it up and reports this.
    fn up(&mut self, link: &Link, record: &Record, is_ours_alone: bool) {
        if record.before.up || !link.up {
            return;
        }
        if is_ours_alone {
            self.change(link, LinkChange::Up(false));
        } else {
            self.left.push(format!(
                "{} stays up, because another program uses it",
                link.name
            ));
        }
    }

    fn mtu(&mut self, link: &Link, record: &Record) {
        let (before, present) = (record.before.mtu, link.mtu);
        if present != before {
            let is_ours = record.gifts().any(|given| given.mtu == Some(present));
            let change = LinkChange::Mtu(before);
            self.undo(link, change, is_ours, &format!("MTU {present}"));
        }
    }

    fn rp_filter(&mut self, link: &Link, record: &Record) {
        let present = link.sysctls.get(RP_FILTER).copied();
        let before = record
            .before
            .settings
            .rp_filter
            .filter(|it| present != Some(*it));
        let Some((value, present)) = before.zip(present) else {
            return;
        };
        let is_ours = record
            .gifts()
            .any(|it| it.settings.rp_filter == Some(present));
        let key = RP_FILTER.to_owned();
        let words = format!("{key} = {present}");
        self.undo(link, LinkChange::Sysctl { key, value }, is_ours, &words);
    }

    /// Plans `change`, which restores an earlier value, if the daemon set the present value (`is_ours`). Otherwise
    /// reports the present value, `present`.
    fn undo(&mut self, link: &Link, change: LinkChange, is_ours: bool, present: &str) {
        if is_ours {
            self.change(link, change);
        } else {
            self.left.push(format!(
                "{} has {present}, which another program set later: not changed",
                link.name
            ));
        }
    }
}
