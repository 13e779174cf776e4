// SPDX-License-Identifier: Apache-2.0
//! Chooses the RDMA port for each interface of a pod, and the pnet entries for interface and port.

use super::{
    fits::{SmcInput, base, fits, sources},
    netdev_entry,
    rails::{Carrier, carriers},
    reason::SkipReason,
    table,
    verdict::{Source, same_subnet},
};
use attachments::{Attachment, Carried, Fit, PlacedEntry, Smc, SmcStatus};
use rdma_netns::{
    Link, NetnsSide,
    smc::{PnetEntry, PnetId},
};

/// Pnet id of interfaces whose connections must stay TCP. No RDMA port has this id by default, because the default ids
/// are hardware addresses.
const NO_PORTS_ID: &str = "TCPONLY";

/// The SMC-R set-up, and the interfaces without SMC-R.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// SMC-R part of the attachment's record.
    pub smc: Smc,
    /// Interfaces without SMC-R, and RDMA devices of rails without SMC-R. Each has a reason.
    pub without: Vec<(String, SkipReason)>,
}

/// Chooses the SMC-R set-up of a pod. The result depends only on `input`.
pub fn choose(input: SmcInput<'_>) -> Chosen {
    let SmcInput {
        attachment,
        observed,
        smc_state,
        ..
    } = input;
    let carriers = carriers(attachment, observed, smc_state, input.gids.is_some());
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
    for (rail, carrier) in attachment.rails.iter().zip(&carriers) {
        // do not report a rail without an RDMA device: it is like any other interface
        if let (Some(rdma), Err(reason)) = (&rail.rdma, carrier) {
            draft.without.push((rdma.name.clone(), reason.clone()));
        }
    }
    for carrier in &usable {
        let name = attachment.rails[carrier.rail].pod_name.to_string();
        match fits(input, carrier.rail, &carrier.id, &name) {
            Ok(fit) => draft.carry(&name, carrier, fit),
            // do not report an interface without IPv4, because `rdma-cni` sets up SMC-R only for IPv4
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
    draft.finish();
    let SmcBuilder { smc, without, .. } = draft;
    Chosen { smc, without }
}

/// A set-up in progress.
struct SmcBuilder<'a> {
    input: SmcInput<'a>,
    smc: Smc,
    without: Vec<(String, SkipReason)>,
}

impl SmcBuilder<'_> {
    fn link(&self, name: &str) -> Option<&Link> {
        self.input.observed.pod.as_ref()?.link(name)
    }

    /// Chooses the first rail that can carry the connections of the pod's primary interface. Rails in a subnet of this
    /// interface come first.
    fn primary(&mut self, name: &str, usable: &[&Carrier]) {
        let Some(link) = self.link(name) else {
            return;
        };
        let usable = usable.iter().copied();
        let (mut candidates, others): (Vec<&Carrier>, Vec<&Carrier>) =
            usable.partition(|it| self.has_subnet_of(it, link));
        candidates.extend(others);
        let mut first = None;
        for carrier in candidates {
            match fits(self.input, carrier.rail, &carrier.id, name) {
                Ok(fit) => return self.carry(name, carrier, fit),
                Err(reason) => first = first.or(Some(reason)),
            }
        }
        // do not report a primary interface without IPv4 if another interface has SMC-R
        let is_carried = !self.smc.interfaces.is_empty();
        let first = first.filter(|it| !(is_carried && *it == SkipReason::NoIpv4));
        self.without
            .extend(first.map(|reason| (name.to_owned(), reason)));
    }

    /// Returns true if the netdev of `carrier` has an IPv4 address in a subnet of `link`.
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

    /// Assigns the pnet id of `carrier` to the interface `name`, and to the port of `carrier`. An interface that
    /// already has another pnet id keeps it.
    fn carry(&mut self, name: &str, carrier: &Carrier, fit: Fit) {
        let id = &carrier.id;
        let present = entry_of(&self.input.smc_state.pod, name).map(|it| it.name.clone());
        if let Some(present) = present.filter(|present| present != id) {
            // accept the id if another attachment of this pod has set it
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
        self.place(NetnsSide::Host, carrier.entry());
        self.place(NetnsSide::Pod, netdev_entry(id, name));
    }

    /// Returns true if another attachment of the same pod gave the interface `name` the id `id`.
    fn is_pods(&self, id: &PnetId, name: &str) -> bool {
        let same_pod = |it: &&Attachment| it.netns_id == self.input.attachment.netns_id;
        let smc = self.input.others.iter().filter(same_pod);
        let mut entries = smc.flat_map(|it| it.smc.iter().flat_map(|smc| &smc.entries));
        entries.any(|it| it.entry.name == *id && it.entry.netdev.as_deref() == Some(name))
    }

    /// Adds `entry` to the record. Omits an entry that an administrator has set: it is in the kernel's table, and in no
    /// other attachment's record.
    fn place(&mut self, at: NetnsSide, entry: PnetEntry) {
        let SmcInput {
            attachment,
            others,
            smc_state,
            ..
        } = self.input;
        let has = |other: &Attachment| {
            let reaches = at == NetnsSide::Host || other.netns_id == attachment.netns_id;
            reaches && other.smc.as_ref().is_some_and(|smc| smc.has(at, &entry))
        };
        let is_ours = !table(smc_state, at).contains(&entry) || others.iter().any(has);
        if is_ours && !self.smc.has(at, &entry) {
            self.smc.entries.push(PlacedEntry { at, entry });
        }
    }

    /// Adds the entries against foreign GIDs, and the reasons why interfaces have no SMC-R. If SMC-R carries at least
    /// one interface, also adds the user EID, `max_links` and `tcp2smc`. Otherwise sets the status to off.
    fn finish(&mut self) {
        let SmcInput {
            attachment,
            others,
            smc_state,
            ueid,
            ..
        } = self.input;
        self.block_foreign_gids();
        self.smc.reason = self.words();
        if self.smc.interfaces.is_empty() {
            let nothing = || "the pod has no IPv4 address for SMC-R".to_owned();
            self.smc.state = SmcStatus::Off;
            self.smc.reason.get_or_insert_with(nothing);
            return;
        }
        let mut records = others.iter().filter_map(|it| Some((it, it.smc.as_ref()?)));
        self.smc.ueid = ueid.map(str::to_owned).filter(|ueid| {
            let has = |(_, smc): (_, &Smc)| smc.ueid.as_ref() == Some(ueid);
            !smc_state.ueids.contains(ueid) || records.clone().any(has)
        });
        self.smc.max_links = smc_state.max_links.and_then(|links| match links {
            super::ONE => records.clone().find_map(|(other, smc)| {
                smc.max_links
                    .filter(|_| other.netns_id == attachment.netns_id)
            }),
            more => Some(more),
        });
        self.smc.tcp2smc = match smc_state.tcp2smc {
            None => false,
            Some(false) => true,
            Some(true) => {
                records.any(|(other, smc)| other.netns_id == attachment.netns_id && smc.tcp2smc)
            }
        };
    }

    /// Adds entries for interfaces whose connections the kernel might carry with a GID of another owner. No RDMA port
    /// has the id of these entries, so the kernel finds no port and uses TCP.
    ///
    /// Without an entry, the kernel would use the RDMA device of the netdev, or of the netdev below it
    /// (`smc_pnet_find_rdma_dev()`). If the netdev below has an id, the kernel uses that id, and an entry in the pod
    /// has no effect.
    fn block_foreign_gids(&mut self) {
        let Ok(id) = PnetId::try_from(NO_PORTS_ID) else {
            return;
        };
        let mut without = std::mem::take(&mut self.without);
        for (name, why) in without.iter_mut().filter(|it| it.1.may_use_foreign_gid()) {
            if let Some(base) = base(self.input, name).filter(|base| base.name != id) {
                *why = SkipReason::Exposed {
                    reason: Box::new(why.clone()),
                    netdev: base.netdev.clone().unwrap_or_default(),
                    id: base.name.clone(),
                };
                continue;
            }
            let present = entry_of(&self.input.smc_state.pod, name);
            if present.is_none_or(|present| present.name == id) {
                self.place(NetnsSide::Pod, netdev_entry(&id, name));
            }
        }
        self.without = without;
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

/// Returns the entry of the netdev `name`. A netdev has at most one entry.
fn entry_of<'a>(table: &'a [PnetEntry], name: &str) -> Option<&'a PnetEntry> {
    table
        .iter()
        .find(|entry| entry.netdev.as_deref() == Some(name))
}
