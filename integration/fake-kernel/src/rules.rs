// SPDX-License-Identifier: Apache-2.0
//! Routing rules. They belong to a namespace, and do not depend on its netdevs.

use crate::world::{Refusal, World};
use nix::errno::Errno;
use rdma_netns::{NetnsId, Rule};

impl World {
    /// Adds a rule: `ip rule add`. A present rule is no error. IPv4 rules come before IPv6 rules. Rules of one priority
    /// are in the order of their creation (`fib_nl_newrule()`, `net/core/fib_rules.c`).
    pub(crate) fn add_rule(&mut self, netns: NetnsId, rule: &Rule) -> Result<(), Refusal> {
        let rules = self.rules_mut(netns)?;
        if !rules.contains(rule) {
            rules.push(rule.clone());
            rules.sort_by_key(|rule| (rule.from.is_ipv6(), rule.priority));
        }
        Ok(())
    }

    /// Removes a rule: `ip rule del`. A missing rule is no error.
    pub(crate) fn remove_rule(&mut self, netns: NetnsId, rule: &Rule) -> Result<(), Refusal> {
        self.rules_mut(netns)?.retain(|other| other != rule);
        Ok(())
    }

    /// Returns a namespace's rules, without the default rules.
    pub fn rules(&self, netns: NetnsId) -> &[Rule] {
        let found = self.namespaces.iter().find(|n| n.id == netns);
        found.map_or(&[], |n| &n.rules)
    }

    fn rules_mut(&mut self, netns: NetnsId) -> Result<&mut Vec<Rule>, Refusal> {
        let found = self.namespaces.iter_mut().find(|n| n.id == netns);
        Ok(&mut found.ok_or(Errno::EINVAL)?.rules)
    }
}
