// SPDX-License-Identifier: Apache-2.0
//! Checks records of attachments and claims, notes on attributes that were not restored, leases of addresses, and SMC-R
//! settings that no pod uses.

use super::{
    super::facts::{Facts, Lease, Record},
    Findings, ago, count, named, some,
};
use attachments::{Attachment, Phase, Rail, Stage};
use network_conf::Conf;
use rdma_netns::{NetnsSide, Observed, RdmaMode};
use std::collections::BTreeSet;

/// Time in seconds after which a record should no longer wait for the release of its addresses. The runtime repeats DEL
/// after five minutes.
const RELEASE_TIMEOUT: u64 = 600;

const RECOVERY: &str = "the next ADD on this node restores its devices; to cause an ADD, delete a pod with RDMA, so \
                        that it starts again";

pub(super) fn examine(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    let mut pods = 0;
    let mut rails = 0;
    for record in &facts.records {
        match record {
            Record::Good {
                attachment,
                lives,
                busy,
                age,
                changed_children,
            } => {
                for words in changed_children {
                    findings.warning(
                        format!("{}: {words}", attachment.holder()),
                        "delete the pod, and give NET_ADMIN to no pod that has a shared rail (docs/security.md)",
                    );
                }
                let is_settled = *lives && attachment.phase == Phase::Attached;
                if is_settled || *busy {
                    pods += 1;
                    rails += attachment.rails.len();
                } else {
                    stale(facts, attachment, *lives, *age, findings);
                }
            }
            Record::Corrupt { key, why } => findings.warning(
                format!("the record of {key} cannot be read: {why}"),
                "delete the pod: its DEL handles the unreadable record",
            ),
            Record::Newer { key, format } => findings.error(
                format!(
                    "the record of {key} has format {format}, of a newer rdma-cni: its pod cannot \
                     end"
                ),
                "install the newer release again",
            ),
        }
    }
    if pods > 0 {
        findings.ok(format!(
            "{} with {}",
            count(pods, "attachment"),
            count(rails, "rail")
        ));
    }
    for why in &facts.unreadable_claims {
        findings.warning(
            format!("the record of a claim cannot be read, and its pods cannot start: {why}"),
            "delete the pods of the claim: kubelet then unprepares the claim, and the daemon renames the record",
        );
    }
    if let Some(files) = named(facts.aside.iter().map(|it| it.display())) {
        // name all directories, because `files` may not list all files
        let directories = facts.aside.iter().filter_map(|it| it.parent());
        let directories: BTreeSet<_> = directories.map(|it| it.display().to_string()).collect();
        let directories: Vec<_> = directories.into_iter().collect();
        findings.advice(
            format!(
                "{} renamed as unreadable: {files}",
                count(facts.aside.len(), "record")
            ),
            format!(
                "check that all devices are on the host, then remove all *.corrupt files in {}",
                directories.join(", ")
            ),
        );
    }
    if let Some(links) = named(facts.links.iter().map(|it| it.display())) {
        findings.warning(
            format!("directories of records or leases are symbolic links: {links}"),
            "end the node's pods with RDMA, and replace each link by a directory with the files of its target",
        );
    }
    given_up(facts, findings);
    leases(facts, conf, findings);
    smc(facts, conf, findings);
}

/// Reports netdevs that returned to the host, but were not fully restored.
fn given_up(facts: &Facts, findings: &mut Findings<'_>) {
    let Some(observed) = &facts.observed else {
        return;
    };
    for note in &facts.given_up {
        let Some(left) = named(plan::given_up::left(note, observed)) else {
            continue;
        };
        let name = &note.host_link.name;
        findings.warning(
            format!(
                "{name} was not fully restored after its pod ({}): {left}",
                note.holder
            ),
            format!(
                "restore these attributes by hand if possible; the next pod gets {name} in its present state"
            ),
        );
    }
}

/// Reports a record whose pod has ended, or whose verb was killed.
fn stale(
    facts: &Facts,
    attachment: &Attachment,
    lives: bool,
    age: u64,
    findings: &mut Findings<'_>,
) {
    let whose = attachment.holder();
    let observed = facts.observed.as_ref();
    if observed.is_some_and(|it| it.boot_id != attachment.boot_id) {
        findings.note(format!(
            "{whose}: the record is from an earlier boot, and its devices are restored; the next ADD removes the \
             record"
        ));
        return;
    }
    if attachment.phase == Phase::Restored {
        if attachment.ipam.is_none() {
            findings.note(format!(
                "{whose}: its devices are restored; the next ADD removes the record"
            ));
            return;
        }
        let what = format!("{whose}: its addresses are not released yet");
        match age > RELEASE_TIMEOUT {
            true => findings.warning(
                format!("{what}; last attempt {}", ago(age)),
                "check the IPAM plugin and its data directory: the next ADD tries again",
            ),
            false => findings.note(what),
        }
        return;
    }
    let what = match (attachment.phase, lives) {
        (Phase::Attaching, _) => "its ADD was killed, or could not restore its devices",
        (Phase::Detaching, _) => "the restore of its devices was killed, or failed",
        _ => "its pod is gone without a DEL",
    };
    let rails = attachment.rails.iter();
    let rails = rails.filter(|rail| rail.stage != Stage::Returned);
    let left = rails.filter_map(|rail| left(attachment, rail, observed?));
    let left = named(left).map_or(String::new(), |left| format!("; {left}"));
    findings.warning(format!("{whose}: {what}{left}"), RECOVERY);
}

/// Returns a sentence if a device is not back on the host after its pod has ended, or is back under another name. Does
/// not compare other attributes.
fn left(attachment: &Attachment, rail: &Rail, observed: &Observed) -> Option<String> {
    let exclusive = observed.rdma_mode == Some(RdmaMode::Exclusive);
    let rdma = rail
        .rdma
        .as_ref()
        .filter(|_| exclusive && attachment.moves_rdma());
    let rdma = rdma.filter(|rdma| {
        rail.shared.is_none()
            && plan::rdma_on_host(rail, observed).is_none()
            && !rdma.name.is_empty()
    });
    let Some(host_link) = &rail.host_link else {
        return rdma.map(|rdma| format!("{} is not back on the host", rdma.name));
    };
    let present = match &host_link.parent {
        Some(address) => observed
            .host
            .links_of(address, &observed.host)
            .first()
            .copied(),
        None => observed.host.link(&host_link.name),
    };
    match present {
        None => Some(format!("{} is not back on the host", host_link.name)),
        Some(link) if link.name != host_link.name => {
            Some(format!("{} is called {}", host_link.name, link.name))
        }
        Some(_) => rdma.map(|rdma| format!("{} is not back on the host", rdma.name)),
    }
}

/// Reports leases of containers that have neither a record nor a file in libcni's cache. If the cache has no file,
/// reports only leases whose interface has a rail's name.
fn leases(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    let Some(conf) = conf.filter(|_| !facts.leases.is_empty()) else {
        return;
    };
    let known: BTreeSet<&str> = facts
        .records
        .iter()
        .map(|record| match record {
            Record::Good { attachment, .. } => attachment.key.container.as_str(),
            Record::Corrupt { key, .. } | Record::Newer { key, .. } => key.container.as_str(),
        })
        .collect();
    let is_rails = |lease: &Lease| {
        let interface = lease.interface.as_deref();
        (0..64).any(|rail| {
            conf.interface_name.name(rail).as_deref() == interface && interface.is_some()
        })
    };
    let is_cached = |lease: &Lease| {
        let cached = facts.cached.as_ref();
        cached.is_some_and(|it| {
            it.iter()
                .any(|file| file.contains(&format!("-{}-", lease.container)))
        })
    };
    let is_idle = |lease: &&Lease| {
        // judge a lease of another plugin only by the runtime's cache. An empty cache directory shows nothing: kubelet
        // may have created it for a pod that mounts it, and the runtime's cache may be at another path.
        let is_known = facts.cached.as_ref().is_some_and(|it| !it.is_empty());
        let can_be_judged = is_rails(lease) || is_known;
        can_be_judged && !known.contains(lease.container.as_str()) && !is_cached(lease)
    };
    let idle = facts.leases.iter().filter(is_idle);
    let idle: Vec<String> = idle.map(|lease| lease.address.to_string()).collect();
    if !idle.is_empty() {
        findings.warning(
            format!(
                "{} leased to containers that are gone: {}",
                count(idle.len(), "address").replace("addresss", "addresses"),
                some(&idle)
            ),
            "with CNI 1.1, the runtime's GC releases these addresses; else remove their files below ipam.dataDir (by \
             default /var/lib/cni/networks)",
        );
    }
}

/// Reports the host's pnet entries and user EIDs that no record has. Ignores records whose changes are undone. The
/// configured user EID counts as used.
fn smc(facts: &Facts, conf: Option<&Conf>, findings: &mut Findings<'_>) {
    let Some(smc) = &facts.smc else {
        return;
    };
    let observed = facts.observed.as_ref();
    // if the boot id is unknown, the record counts as one of this boot
    let is_away = |attachment: &Attachment| {
        attachment.is_away(observed.map_or(&attachment.boot_id, |it| &it.boot_id))
    };
    let records = || {
        facts.records.iter().filter_map(|record| match record {
            Record::Good { attachment, .. } if is_away(attachment) => attachment.smc.as_ref(),
            _ => None,
        })
    };
    let mut unused = |noun: &str, names: Vec<String>, origin: &str| {
        if !names.is_empty() {
            let (number, names) = (count(names.len(), noun), some(&names));
            findings.note(format!("{number} that no pod uses: {names}{origin}"));
        }
    };
    let others = smc.host.iter();
    let others = others.filter(|entry| !records().any(|it| it.has(NetnsSide::Host, entry)));
    let others = others.map(|entry| entry.name.to_string()).collect();
    let origin = " (set by an administrator, or left by a pod whose record is lost)";
    unused("pnet id", others, origin);
    let wanted = conf.and_then(|conf| conf.smc.ueid.as_deref());
    let is_known = |eid: &&String| {
        wanted == Some(eid.as_str()) || records().any(|it| it.ueid.as_ref() == Some(eid))
    };
    let others = smc.ueids.iter().filter(|eid| !is_known(eid));
    unused("user EID", others.cloned().collect(), "");
}
