// SPDX-License-Identifier: Apache-2.0
//! Examines the cables between the node's NICs and the switches.

use super::{super::facts::Facts, Findings, count};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn examine(facts: &Facts, findings: &mut Findings<'_>) {
    let rails = facts.switches_of_rails();
    let mut by_switch: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (rail, switch) in &rails {
        by_switch.entry(switch).or_default().push(rail);
    }
    let mut several = by_switch.iter().filter(|(_, rails)| rails.len() > 1);
    // report only from four rails on: two switches for three rails can be intended
    if let (Some((switch, rails)), None, 3..) = (several.next(), several.next(), by_switch.len())
        && let [one, other] = rails.as_slice()
    {
        return findings.warning(
            format!("{one} and {other} are both on the switch {switch}, and every other rail has its own switch"),
            "check the cables of both rails: one of them is probably connected to the wrong switch",
        );
    }
    if !rails.is_empty() {
        let seen = facts.switches.0.values();
        let switches: BTreeSet<&str> = seen.map(|it| it.neighbour.switch()).collect();
        let number = match switches.len() {
            1 => "1 switch".to_owned(),
            number => format!("{number} switches"),
        };
        findings.ok(format!("{} on {number}", count(rails.len(), "rail")));
    }
}
