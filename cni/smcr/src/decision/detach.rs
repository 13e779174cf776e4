// SPDX-License-Identifier: Apache-2.0
//! Plans the removal of a pod's SMC-R. The kernel removes all entries of an id in a namespace at once. The plan
//! therefore adds the entries of other attachments and programs again.

use super::{ONE, add, of_id, table};
use attachments::{Attachment, PlacedEntry, Smc};
use rdma_netns::{
    NetnsSide, Op,
    smc::{PnetEntry, PnetId, SmcState},
};

/// Records of the node's other attachments.
#[derive(Clone, Copy, Debug)]
pub struct Others<'a> {
    /// Readable records.
    pub records: &'a [Attachment],
    /// True if some records cannot be read. Such a record may contain any entry of the host's table.
    pub unreadable: bool,
}

/// Returns the changes that remove the attachment's SMC-R. Keeps the entries that `others` also use. If the kernel
/// removes them with their id, adds them again. `has_pod` is true if the pod's namespace exists.
pub fn detach(
    attachment: &Attachment,
    others: Others<'_>,
    smc_state: &SmcState,
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
    if has_pod && is_ours && smc_state.tcp2smc == Some(true) {
        ops.push(Op::SetTcp2Smc { on: false });
    }
    let before = smc
        .max_links
        .filter(|_| in_pod.iter().all(|it| it.max_links.is_none()));
    if let Some(links) = before.filter(|_| has_pod && smc_state.max_links == Some(ONE)) {
        ops.push(Op::SetMaxLinks { links });
    }
    let returning = returning(attachment, others, smc_state, has_pod);
    for (at, id) in users.ids(has_pod) {
        let is_removed = users.must_remove(at, id, smc_state);
        if is_removed {
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
    let ueid = ueid.filter(|ueid| smc_state.ueids.contains(ueid) && !is_others(ueid));
    ops.extend(ueid.map(|ueid| Op::RemoveUeid { ueid: ueid.clone() }));
    ops
}

/// Returns the entries of other attachments and programs that must be added again: entries that [`detach`] removes, and
/// entries that an earlier verb removed. The caller records them first, because it may be killed before it has
/// added them.
///
/// Leaves out an entry that exists already, and an entry whose device now has another id.
pub fn returning(
    attachment: &Attachment,
    others: Others<'_>,
    smc_state: &SmcState,
    has_pod: bool,
) -> Vec<PlacedEntry> {
    let Some(users) = Users::of(attachment, others) else {
        return vec![];
    };
    let is_away = |it: &&PlacedEntry| {
        // an ended namespace no longer has a table
        let has_table = has_pod || it.at == NetnsSide::Host;
        let is_there = table(smc_state, it.at).contains(&it.entry);
        has_table && !is_there && users.may_return(it, smc_state)
    };
    let away = users.smc.returning.iter().filter(is_away).cloned();
    let mut returning: Vec<PlacedEntry> = away.collect();
    for (at, id) in users.ids(has_pod) {
        if !users.must_remove(at, id, smc_state) {
            continue;
        }
        let placed = of_id(table(smc_state, at), id).map(|entry| PlacedEntry {
            at,
            entry: entry.clone(),
        });
        returning.extend(placed.filter(|it| !users.is_only_ours(at, &it.entry)));
    }
    returning
}

/// SMC-R part of a record, and the records that may share its entries.
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

    /// Returns the pnet ids of the record's entries, first the ids in the pod.
    fn ids(&self, has_pod: bool) -> Vec<(NetnsSide, &'a PnetId)> {
        let sides = [NetnsSide::Pod, NetnsSide::Host].into_iter();
        let mut ids = vec![];
        for at in sides.filter(|at| has_pod || *at == NetnsSide::Host) {
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

    /// Returns true if an entry of `id` must be removed.
    fn must_remove(&self, at: NetnsSide, id: &PnetId, smc_state: &SmcState) -> bool {
        of_id(table(smc_state, at), id).any(|entry| self.is_only_ours(at, entry))
    }

    /// Returns true if the attachment has `entry`, and no other attachment can have it.
    fn is_only_ours(&self, at: NetnsSide, entry: &PnetEntry) -> bool {
        let (others, unknown) = match at {
            NetnsSide::Pod => (&self.in_pod, false),
            NetnsSide::Host => (&self.everywhere, self.unreadable),
        };
        self.smc.has(at, entry) && !unknown && !others.iter().any(|other| other.has(at, entry))
    }

    /// Returns true if `placed` belongs to another attachment or program and can be added again. It cannot be added if
    /// its netdev or RDMA device now has another id, because the kernel would keep that id.
    fn may_return(&self, placed: &PlacedEntry, smc_state: &SmcState) -> bool {
        let PlacedEntry { at, entry } = placed;
        let keeps_out = |it: &PnetEntry| it.excludes(entry) && !self.is_only_ours(*at, it);
        !self.is_only_ours(*at, entry) && !table(smc_state, *at).iter().any(keeps_out)
    }
}
