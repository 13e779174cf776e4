// SPDX-License-Identifier: Apache-2.0
//! Routing rules: a namespace's own, whatever becomes of its netdevs.

use crate::world::{Refusal, World};
use nix::errno::Errno;
use rdma_netns::{NetnsId, Rule};

impl World {
    /// `ip rule add`; an existing rule is no error. Rules of one priority are in the order of their creation
    /// (`fib_nl_newrule()`, `net/core/fib_rules.c`), IPv4 before IPv6.
    pub(crate) fn add_rule(&mut self, netns: NetnsId, rule: &Rule) -> Result<(), Refusal> {
        let rules = self.rules_mut(netns)?;
        if !rules.contains(rule) {
            rules.push(rule.clone());
            rules.sort_by_key(|rule| (rule.from.is_ipv6(), rule.priority));
        }
        Ok(())
    }

    /// `ip rule del`; one that is gone already is no error.
    pub(crate) fn remove_rule(&mut self, netns: NetnsId, rule: &Rule) -> Result<(), Refusal> {
        self.rules_mut(netns)?.retain(|other| other != rule);
        Ok(())
    }

    /// Returns the rules of a namespace, without the three default rules.
    pub fn rules(&self, netns: NetnsId) -> &[Rule] {
        let found = self.namespaces.iter().find(|n| n.id == netns);
        found.map_or(&[], |n| &n.rules)
    }

    fn rules_mut(&mut self, netns: NetnsId) -> Result<&mut Vec<Rule>, Refusal> {
        let found = self.namespaces.iter_mut().find(|n| n.id == netns);
        Ok(&mut found.ok_or(Errno::EINVAL)?.rules)
    }
}
