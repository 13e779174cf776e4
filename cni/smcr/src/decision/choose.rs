// SPDX-License-Identifier: Apache-2.0
//! Which interfaces of a pod are carried by which RDMA port, and what is set up for it.

pub use super::fits::{SkipReason, SmcInput};

use super::{
    fits::{base, fits, sources},
    rails::{Blocker, Carrier, carriers},
    verdict::{Source, same_subnet},
};
use attachments::{Attachment, Carried, Fit, PlacedEntry, Smc, SmcStatus};
use rdma_netns::{
    Link, NetnsSide,
    smc::{PnetEntry, PnetId},
};

/// The pnet id of what is to stay TCP: it is no hardware address, as those of RDMA ports are.
const NO_PORTS_ID: &str = "TCPONLY";

/// What is to be set up, and what goes without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The record's part.
    pub smc: Smc,
    /// The interfaces, and rails' RDMA devices, that go without, and why.
    pub without: Vec<(String, SkipReason)>,
}

/// What is to be set up. Pure: the same input, the same choice.
pub fn choose(input: SmcInput<'_>) -> Chosen {
    let SmcInput {
        attachment,
        observed,
        seen,
        ..
    } = input;
    let carriers = carriers(attachment, observed, seen, input.gids.is_some());
    let mut draft = SmcBuilder {
        input,
        smc: Smc {
            state: SmcStatus::Active,
            reason: None,
            ..Smc::off(String::new())
        },
        without: vec![],
    };
    let usable: Vec<&Carrier> = carriers.iter().flatten().collect();
    for blocker in carriers.iter().filter_map(|it| it.as_ref().err()) {
        // a rail that is no RDMA device's is as good as any other interface
        if *blocker != Blocker::NoRdma {
            draft
                .without
                .push((device_of(blocker), blocker.clone().into()));
        }
    }
    for carrier in &usable {
        let name = attachment.rails[carrier.rail].pod_name.to_string();
        match draft.fits(carrier, &name) {
            Ok(fit) => draft.carry(&name, carrier, fit),
            // nothing could be carried that has no IPv4 address, and nobody meant it to be
            Err(SkipReason::NoIpv4) => {}
            Err(reason) => draft.without.push((name, reason)),
        }
    }
    let is_rail = |name: &str| {
        usable
            .iter()
            .any(|it| *attachment.rails[it.rail].pod_name == *name)
    };
    if let Some(primary) = input.primary.filter(|name| !is_rail(name)) {
        draft.primary(primary, &usable);
    }
    draft.finish()
}

/// The rail's RDMA device that a blocker is about.
fn device_of(blocker: &Blocker) -> String {
    match blocker {
        Blocker::Compat { device }
        | Blocker::Unused { device }
        | Blocker::NotEthernet { device }
        | Blocker::NotInPod { device }
        | Blocker::OtherPort { device, .. }
        | Blocker::IdTaken { device, .. } => device.clone(),
        Blocker::NoSmc | Blocker::NoRdma => String::new(),
    }
}

/// A choice that is being made.
struct SmcBuilder<'a> {
    input: SmcInput<'a>,
    smc: Smc,
    without: Vec<(String, SkipReason)>,
}

impl SmcBuilder<'_> {
    fn link(&self, name: &str) -> Option<&Link> {
        self.input.observed.pod.as_ref()?.link(name)
    }

    /// Whether connections by the interface `name` can be carried by `carrier`.
    fn fits(&self, carrier: &Carrier, name: &str) -> Result<Fit, SkipReason> {
        fits(self.input, carrier, name)
    }

    /// Carries the pod's primary interface by a rail: one of the primary's subnet, or else the
    /// first, if connections would be carried.
    fn primary(&mut self, name: &str, usable: &[&Carrier]) {
        let Some(link) = self.link(name) else {
            return;
        };
        let mut candidates = usable.to_vec();
        candidates.sort_by_key(|it| !self.has_subnet_of(it, link));
        let mut first = None;
        for carrier in candidates {
            match self.fits(carrier, name) {
                Ok(fit) => return self.carry(name, carrier, fit),
                Err(reason) => first = first.or(Some(reason)),
            }
        }
        // as with a rail, where there is something else to be carried
        let is_carried = !self.smc.interfaces.is_empty();
        let first = first.filter(|it| !(is_carried && *it == SkipReason::NoIpv4));
        self.without
            .extend(first.map(|reason| (name.to_owned(), reason)));
    }

    /// Whether the carrier's netdev has an IPv4 address in a subnet of `link`.
    fn has_subnet_of(&self, carrier: &Carrier, link: &Link) -> bool {
        let rail = &self.input.attachment.rails[carrier.rail];
        let rail = self.link(&rail.pod_name);
        let of_link = |link| sources(self.input, link);
        let rails: Vec<Source> = rail.into_iter().flat_map(of_link).collect();
        of_link(link).any(|source| {
            let is_near = |it: &Source| same_subnet(it.ip, source.prefix, source.ip);
            rails.iter().any(is_near)
        })
    }

    /// Gives `name` the id of `carrier`, and the port as well.
    fn carry(&mut self, name: &str, carrier: &Carrier, fit: Fit) {
        let id = &carrier.entry.name;
        let entry = PnetEntry {
            name: id.clone(),
            netdev: Some(name.to_owned()),
            rdma: None,
        };
        let present = entry_of(&self.input.seen.pod, name).map(|it| it.name.clone());
        if let Some(present) = present.filter(|present| present != id) {
            // another attachment of this pod carries it already
            if !self.is_pods(&present, name) {
                let reason = SkipReason::OtherId(present);
                self.without.push((name.to_owned(), reason));
            }
            return;
        }
        self.smc.interfaces.push(Carried {
            interface: name.to_owned(),
            pnet_id: id.clone(),
            rdma_device: carrier.device.clone(),
            port: carrier.port,
            by: fit,
        });
        self.side(NetnsSide::Host, &carrier.entry);
        self.side(NetnsSide::Pod, &entry);
    }

    /// Whether another attachment of the same pod gave the interface `name` this id.
    fn is_pods(&self, id: &PnetId, name: &str) -> bool {
        let same_pod = |it: &&Attachment| it.netns_id == self.input.attachment.netns_id;
        let smc = self.input.others.iter().filter(same_pod);
        let mut entries = smc.flat_map(|it| it.smc.iter().flat_map(|smc| &smc.entries));
        entries.any(|it| it.entry.name == *id && it.entry.netdev.as_deref() == Some(name))
    }

    /// `entry` is to be there: ours, unless it is there and no record has it.
    fn side(&mut self, at: NetnsSide, entry: &PnetEntry) {
        let SmcInput {
            attachment,
            others,
            seen,
            ..
        } = self.input;
        let table = match at {
            NetnsSide::Host => &seen.host,
            NetnsSide::Pod => &seen.pod,
        };
        let has = |other: &Attachment| {
            let reaches = at == NetnsSide::Host || other.netns_id == attachment.netns_id;
            reaches && other.smc.as_ref().is_some_and(|smc| smc.has(at, entry))
        };
        let is_ours = !table.contains(entry) || others.iter().any(has);
        if is_ours && !self.smc.has(at, entry) {
            let entry = entry.clone();
            self.smc.entries.push(PlacedEntry { at, entry });
        }
    }

    /// User EID and `tcp2smc`, where anything is carried at all.
    fn finish(mut self) -> Chosen {
        let SmcInput {
            attachment,
            others,
            seen,
            ueid,
            ..
        } = self.input;
        self.keep_from_strangers();
        self.smc.reason = self.words();
        if self.smc.interfaces.is_empty() {
            let nothing = || "the pod has no IPv4 address that it could carry".to_owned();
            self.smc.state = SmcStatus::Off;
            self.smc.reason.get_or_insert_with(nothing);
            return self.into_chosen();
        }
        let mut records = others.iter().filter_map(|it| Some((it, it.smc.as_ref()?)));
        self.smc.ueid = ueid.map(str::to_owned).filter(|ueid| {
            let has = |(_, smc): (_, &Smc)| smc.ueid.as_ref() == Some(ueid);
            !seen.ueids.contains(ueid) || records.clone().any(has)
        });
        self.smc.max_links = seen.max_links.and_then(|links| match links {
            super::ONE => records.clone().find_map(|(other, smc)| {
                smc.max_links
                    .filter(|_| other.netns_id == attachment.netns_id)
            }),
            more => Some(more),
        });
        self.smc.tcp2smc = match seen.tcp2smc {
            None => false,
            Some(false) => true,
            Some(true) => {
                records.any(|(other, smc)| other.netns_id == attachment.netns_id && smc.tcp2smc)
            }
        };
        self.into_chosen()
    }

    /// Gives what might be carried with a stranger's GID an id that no RDMA port has: the kernel
    /// then looks no further, where without any it would take the RDMA device that the netdev is
    /// of, or lies on (`smc_pnet_find_rdma_dev()`). Where the netdev that it lies on has an id, that
    /// one counts, and only its owner can take it away.
    fn keep_from_strangers(&mut self) {
        let Ok(id) = PnetId::try_from(NO_PORTS_ID) else {
            return;
        };
        let mut without = std::mem::take(&mut self.without);
        for (name, why) in without.iter_mut().filter(|it| it.1.is_strange()) {
            if let Some(base) = base(self.input, name).filter(|base| base.name != id) {
                *why = SkipReason::Exposed {
                    reason: Box::new(why.clone()),
                    netdev: base.netdev.clone().unwrap_or_default(),
                    id: base.name.clone(),
                };
                continue;
            }
            let present = entry_of(&self.input.seen.pod, name);
            if present.is_none_or(|present| present.name == id) {
                let entry = PnetEntry {
                    name: id.clone(),
                    netdev: Some(name.clone()),
                    rdma: None,
                };
                self.side(NetnsSide::Pod, &entry);
            }
        }
        self.without = without;
    }

    fn into_chosen(self) -> Chosen {
        Chosen {
            smc: self.smc,
            without: self.without,
        }
    }

    fn words(&self) -> Option<String> {
        let words = self
            .without
            .iter()
            .map(|(name, why)| format!("{name}: {why}"));
        let words: Vec<String> = words.collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

/// The entry of a netdev; it can have one only.
fn entry_of<'a>(table: &'a [PnetEntry], name: &str) -> Option<&'a PnetEntry> {
    table
        .iter()
        .find(|entry| entry.netdev.as_deref() == Some(name))
}
