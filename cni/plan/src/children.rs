// SPDX-License-Identifier: Apache-2.0
//! Removal of the children of several rails by one deletion.

use crate::RailPlan;
use rdma_netns::{InterfaceName, Link, LinkChange, LinkSetting, NetnsSide, Observed, Op};
use std::collections::BTreeSet;

/// First netdev group (`IFLA_GROUP`) that a plan tries for the children of several rails. One deletion removes all
/// netdevs of a group. The number is `RDMA` in ASCII. If another netdev of the pod has this group, the plan tries the
/// next number.
const CHILD_GROUP: u32 = 0x5244_4d41;

/// Maximum number of netdevs in one removal. The kernel removes some thousands of netdevs per second, and meanwhile no
/// other program can change a netdev.
const BATCH: usize = 512;

/// Limits the rails' plans: together they remove at most one batch of netdevs. Returns true if it shortened a plan. A
/// pod can make as many netdevs on its rails as its memory allows, and other verbs wait for the node's lock during the
/// removal.
pub fn limit_to_batch(plans: &mut [RailPlan]) -> bool {
    let mut removed = 0;
    let mut is_limited = false;
    for ops in plans.iter_mut().flatten() {
        let mut removals = ops.iter().enumerate();
        let excess = removals.find(|(_, op)| {
            removed += usize::from(child_removed(op).is_some());
            removed > BATCH
        });
        if let Some((place, _)) = excess {
            ops.truncate(place);
            is_limited = true;
        }
    }
    is_limited
}

/// Returns the operations that remove, by one deletion, all children that `plans` remove. For each deletion the kernel
/// waits once for the last references to netdevs, so one deletion is faster than several. The operations first put the
/// children into a netdev group that no other netdev of the pod has. Returns no operations if there are fewer than two
/// children.
pub fn children_together(plans: &[RailPlan], observed: &Observed) -> Vec<Op> {
    let Some(pod) = &observed.pod else {
        return vec![];
    };
    let mut removed: BTreeSet<&InterfaceName> = BTreeSet::new();
    removed.extend(plans.iter().flatten().flatten().filter_map(child_removed));
    if removed.len() < 2 {
        return vec![];
    }
    let group_of = |link: &Link| link.settings.get(&LinkSetting::Group).copied();
    let (children, others): (Vec<&Link>, Vec<&Link>) =
        pod.links.iter().partition(|it| removed.contains(&it.name));
    let is_free = |group: &u32| others.iter().all(|it| group_of(it) != Some(*group));
    let Some(group) = (CHILD_GROUP..).find(is_free) else {
        return vec![];
    };
    let outside = children.iter().filter(|it| group_of(it) != Some(group));
    let change = LinkChange::Setting(LinkSetting::Group, group);
    let join = outside.map(|link| Op::link(NetnsSide::Pod, &link.name, change.clone()));
    join.chain([Op::RemoveGroup { group }]).collect()
}

/// Returns the child that `op` removes from the pod.
pub fn child_removed(op: &Op) -> Option<&InterfaceName> {
    match op {
        Op::Link {
            at: NetnsSide::Pod,
            link,
            change: LinkChange::Remove,
        } => Some(link),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Returns a state whose pod has the netdevs `links`, each a name and a group.
    fn observed(links: &[(&str, u32)]) -> Observed {
        let links = links.iter().enumerate().map(|(at, (name, group))| {
            json!({
                "index": at + 2, "name": name, "mac": "02:00:00:00:00:01", "mtu": 1500, "up": true,
                "settings": {"group": group},
            })
        });
        let namespace = |links: Vec<Value>| json!({"id": {"device": 4, "inode": 1, "cookie": 0}, "links": links});
        let observed = json!({
            "boot_id": "", "rdma_mode": null, "host": namespace(vec![]), "pod": namespace(links.collect()),
        });
        serde_json::from_value(observed).expect("a state")
    }

    fn remove(link: &str) -> RailPlan {
        let link = InterfaceName::try_from(link).expect("a name");
        Ok(vec![Op::link(NetnsSide::Pod, &link, LinkChange::Remove)])
    }

    fn planned(plans: &[RailPlan], links: &[(&str, u32)]) -> Vec<String> {
        let ops = children_together(plans, &observed(links));
        ops.iter().map(Op::to_string).collect()
    }

    #[test]
    fn several_go_by_one_deletion() {
        let plans = [remove("rdma0"), Ok(vec![]), remove("rdma1")];
        let expected = [
            "ip -n pod link set dev rdma0 group 1380207937",
            "ip -n pod link set dev rdma1 group 1380207937",
            "ip -n pod link del group 1380207937",
        ];
        let links = [("eth0", 0), ("rdma0", 0), ("rdma1", 0)];
        assert_eq!(planned(&plans, &links), expected);
        // the runtime killed a verb after its first operation
        let links = [("eth0", 0), ("rdma0", CHILD_GROUP), ("rdma1", 0)];
        assert_eq!(planned(&plans, &links), expected[1..]);
    }

    #[test]
    fn nobody_elses_netdev_is_in_the_group() {
        let plans = [remove("rdma0"), remove("rdma1")];
        let links = [
            ("theirs", CHILD_GROUP),
            ("rdma0", CHILD_GROUP),
            ("rdma1", 0),
        ];
        let expected = [
            "ip -n pod link set dev rdma0 group 1380207938",
            "ip -n pod link set dev rdma1 group 1380207938",
            "ip -n pod link del group 1380207938",
        ];
        assert_eq!(planned(&plans, &links), expected);
    }

    #[test]
    fn one_alone_needs_no_group() {
        assert!(planned(&[remove("rdma0")], &[("rdma0", 0)]).is_empty());
        assert!(planned(&[], &[("rdma0", 0)]).is_empty());
    }
}
