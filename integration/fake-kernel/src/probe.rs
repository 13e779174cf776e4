// SPDX-License-Identifier: Apache-2.0
//! Probes of addresses, to find other machines on the link that have an address or are about to set it.

use crate::world::World;
use nix::errno::Errno;
use rdma_netns::{
    Conflict, HardwareAddress, Link, LinkFlag, LinkType, NetnsId, Probed, Question,
    probe::{PROBE_TIME, ProbeObstacle, Sign},
};
use std::net::IpAddr;

/// Hardware address of the machine that answers.
const OTHER: [u8; 6] = [0x0c, 0x42, 0xa1, 0, 0xff, 0xfe];

impl World {
    /// Probes all addresses at once. A machine answers if it has the address, or is probing for it.
    pub(crate) fn probe(
        &mut self,
        netns: NetnsId,
        questions: &[Question],
    ) -> Result<Probed, Errno> {
        let mut probed = Probed::default();
        let mut round = vec![];
        for question in questions {
            let link = &self
                .netdev(netns, &question.link)
                .map_err(|it| it.errno)?
                .link;
            if let Some(why) = cannot_ask(link) {
                let reason = (question.link.clone(), why);
                if !probed.not_probed.contains(&reason) {
                    probed.not_probed.push(reason);
                }
                continue;
            }
            round.push((question.link.clone(), question.address));
            if self.duplicates.contains(&question.address) {
                probed.conflicts.push(conflict(question, Sign::Has));
            } else if remove_once(&mut self.probing, question.address) {
                probed.conflicts.push(conflict(question, Sign::Probes));
            }
        }
        if !round.is_empty() && probed.conflicts.is_empty() {
            probed.waited = PROBE_TIME;
        }
        self.probed.push(round);
        Ok(probed)
    }

    /// Returns the conflicts with machines that announced an address since the probe.
    pub(crate) fn conflicts_since_probe(
        &mut self,
        netns: NetnsId,
        questions: &[Question],
    ) -> Result<Vec<Conflict>, Errno> {
        let mut conflicts = vec![];
        for question in questions {
            let link = &self
                .netdev(netns, &question.link)
                .map_err(|it| it.errno)?
                .link;
            let hears = cannot_ask(link).is_none();
            if hears && remove_once(&mut self.taken_late, question.address) {
                conflicts.push(conflict(question, Sign::Has));
            }
        }
        Ok(conflicts)
    }
}

/// Removes `address` from `list`. Returns true if `list` had it.
fn remove_once(list: &mut Vec<IpAddr>, address: IpAddr) -> bool {
    let found = list.iter().position(|it| *it == address);
    found.map(|at| list.remove(at)).is_some()
}

fn cannot_ask(link: &Link) -> Option<ProbeObstacle> {
    if link.link_type != LinkType::Ether {
        return Some(ProbeObstacle::NotEthernet);
    }
    if link.has(LinkFlag::NoArp) {
        return Some(ProbeObstacle::NoNeighbours);
    }
    (!link.up || !link.carrier).then_some(ProbeObstacle::NoCarrier)
}

fn conflict(question: &Question, sign: Sign) -> Conflict {
    Conflict {
        link: question.link.clone(),
        address: question.address,
        by: HardwareAddress(OTHER.to_vec()),
        sign,
    }
}
