// SPDX-License-Identifier: Apache-2.0
//! What of a pod's SMC-R is taken away, and what of others comes back: entries go by their id, all
//! of a namespace at once.

use super::{ONE, add, of_id, table};
use attachments::{Attachment, PlacedEntry, Smc};
use rdma_netns::{
    NetnsSide, Op,
    smc::{PnetEntry, PnetId, SmcState},
};

/// The other records of the node.
#[derive(Clone, Copy, Debug)]
pub struct Others<'a> {
    /// Those that can be read.
    pub records: &'a [Attachment],
    /// Whether there are some that cannot be read: they may have all that is the node's.
    pub unreadable: bool,
}

/// What of the attachment's SMC-R is still to be taken away. What `others` have as well stays, and
/// is put back if it had to go. `has_pod`: the pod's namespace lives.
pub fn detach(
    attachment: &Attachment,
    others: Others<'_>,
    seen: &SmcState,
    has_pod: bool,
) -> Vec<Op> {
    let Some(users) = Users::of(attachment, others) else {
        return vec![];
    };
    let Users {
        smc,
        in_pod,
        everywhere,
        unreadable,
    } = &users;
    let mut ops = vec![];
    let is_ours = smc.tcp2smc && !in_pod.iter().any(|other| other.tcp2smc);
    if has_pod && is_ours && seen.tcp2smc == Some(true) {
        ops.push(Op::SetTcp2Smc { on: false });
    }
    let before = smc
        .max_links
        .filter(|_| in_pod.iter().all(|it| it.max_links.is_none()));
    if let Some(links) = before.filter(|_| has_pod && seen.max_links == Some(ONE)) {
        ops.push(Op::SetMaxLinks { links });
    }
    let returning = returning(attachment, others, seen, has_pod);
    for (at, id) in users.ids(has_pod) {
        let goes = users.goes(at, id, seen);
        if goes {
            ops.push(Op::RemovePnet { at, id: id.clone() });
        }
        let back = returning.iter();
        let back = back.filter(|it| it.at == at && it.entry.name == *id);
        ops.extend(back.map(|it| add(at, &it.entry)));
    }
    let is_others = |ueid: &String| {
        let has = |other: &&Smc| other.ueid.as_ref() == Some(ueid);
        *unreadable || everywhere.iter().any(has)
    };
    let ueid = smc.ueid.iter();
    let ueid = ueid.filter(|ueid| seen.ueids.contains(ueid) && !is_others(ueid));
    ops.extend(ueid.map(|ueid| Op::RemoveUeid { ueid: ueid.clone() }));
    ops
}

/// The entries of others that [`detach`] takes away and puts back, or that an earlier one has
/// taken away: they are written down before that, should it be killed in between. What is back is
/// none any more, nor what somebody has given another id meanwhile.
pub fn returning(
    attachment: &Attachment,
    others: Others<'_>,
    seen: &SmcState,
    has_pod: bool,
) -> Vec<PlacedEntry> {
    let Some(users) = Users::of(attachment, others) else {
        return vec![];
    };
    let is_away = |it: &&PlacedEntry| {
        // a dead namespace needs nothing
        let has_table = has_pod || it.at == NetnsSide::Host;
        let is_there = table(seen, it.at).contains(&it.entry);
        has_table && !is_there && users.may_return(it, seen)
    };
    let away = users.smc.returning.iter().filter(is_away).cloned();
    let mut returning: Vec<PlacedEntry> = away.collect();
    for (at, id) in users.ids(has_pod) {
        if !users.goes(at, id, seen) {
            continue;
        }
        let placed = of_id(table(seen, at), id).map(|entry| PlacedEntry {
            at,
            entry: entry.clone(),
        });
        returning.extend(placed.filter(|it| !users.is_only_ours(at, &it.entry)));
    }
    returning
}

/// A record's SMC-R, and the others that may have the same.
struct Users<'a> {
    smc: &'a Smc,
    in_pod: Vec<&'a Smc>,
    everywhere: Vec<&'a Smc>,
    unreadable: bool,
}

impl<'a> Users<'a> {
    fn of(attachment: &'a Attachment, others: Others<'a>) -> Option<Self> {
        let records = others.records.iter();
        let records = records.filter_map(|other| Some((other, other.smc.as_ref()?)));
        let in_pod = records
            .clone()
            .filter(|(other, _)| other.netns_id == attachment.netns_id);
        Some(Self {
            smc: attachment.smc.as_ref()?,
            in_pod: in_pod.map(|(_, smc)| smc).collect(),
            everywhere: records.map(|(_, smc)| smc).collect(),
            unreadable: others.unreadable,
        })
    }

    /// The ids that the record has entries of, the pod's first.
    fn ids(&self, has_pod: bool) -> Vec<(NetnsSide, &'a PnetId)> {
        let places = [NetnsSide::Pod, NetnsSide::Host].into_iter();
        let mut ids = vec![];
        for at in places.filter(|at| has_pod || *at == NetnsSide::Host) {
            let entries = self.smc.entries.iter().chain(&self.smc.returning);
            for placed in entries.filter(|it| it.at == at) {
                let id = (at, &placed.entry.name);
                if !ids.contains(&id) {
                    ids.push(id);
                }
            }
        }
        ids
    }

    /// Whether there is an entry of `id` that has to go.
    fn goes(&self, at: NetnsSide, id: &PnetId, seen: &SmcState) -> bool {
        of_id(table(seen, at), id).any(|entry| self.is_only_ours(at, entry))
    }

    /// Whether the record has `entry`, and no other one.
    fn is_only_ours(&self, at: NetnsSide, entry: &PnetEntry) -> bool {
        let (others, unknown) = match at {
            NetnsSide::Pod => (&self.in_pod, false),
            NetnsSide::Host => (&self.everywhere, self.unreadable),
        };
        self.smc.has(at, entry) && !unknown && !others.iter().any(|other| other.has(at, entry))
    }

    /// Whether nobody has given its netdev or RDMA device another id, which the kernel would keep.
    fn may_return(&self, placed: &PlacedEntry, seen: &SmcState) -> bool {
        let PlacedEntry { at, entry } = placed;
        let keeps_out = |it: &PnetEntry| it.excludes(entry) && !self.is_only_ours(*at, it);
        !self.is_only_ours(*at, entry) && !table(seen, *at).iter().any(keeps_out)
    }
}
