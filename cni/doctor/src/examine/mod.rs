// SPDX-License-Identifier: Apache-2.0
//! Derives findings from facts. Pure: equal facts have equal findings.
//!
//! | module | examines |
//! |---|---|
//! | `kernel` | release, modules, the mode of the RDMA subsystem, udev's names |
//! | `devices` | RDMA devices, their netdevs and ports, bonds |
//! | `gpudirect` | registration of accelerators' memory |
//! | `chain` | whether the runtime calls `rdma-cni`; programs |
//! | `pods` | the outcome of an ADD: devices, GIDs, addresses, MTU, SMC-R |
//! | `services` | kubelet, the daemon, the runtime |
//! | `switches` | cables between NICs and switches |
//! | `records` | records, leases of addresses, SMC-R settings of no pod |

mod chain;
mod devices;
mod gpudirect;
mod kernel;
mod pods;
mod records;
mod services;
mod switches;

use super::facts::Facts;
use conf_reader::elided;
use serde::Serialize;
use std::fmt;

/// A defect of one part of the node, information, or the confirmation that this part has no defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Part of the node.
    pub group: Group,
    /// Severity of the finding.
    pub severity: Severity,
    /// Description of the finding.
    pub what: String,
    /// Remedy; `None`: no action is necessary, or no remedy is known.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The part has no defect.
    Ok,
    /// Information only.
    Note,
    /// Some pods may fail or run without RDMA, or the node is slower than it could be.
    Warning,
    /// Some pods will fail or run without RDMA.
    Error,
}

/// Counts the `findings` of each of `severities`, as in `1 error, 2 warnings`. `None`: there are no findings of these
/// severities.
pub fn counted(findings: &[Finding], severities: &[Severity]) -> Option<String> {
    let of = |severity: &Severity| {
        let of_severity = findings.iter().filter(|it| it.severity == *severity);
        let number = of_severity.count();
        (number > 0).then(|| count(number, &severity.to_string()))
    };
    let parts: Vec<String> = severities.iter().filter_map(of).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Part of the node, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// The kernel.
    Kernel,
    /// The hardware.
    Devices,
    /// The runtime's network configuration, and the programs that it names.
    Chain,
    /// The outcome of an ADD.
    Pods,
    /// Kubelet, the daemon, the runtime.
    Services,
    /// Records, leases, and SMC-R settings of no pod.
    Records,
}

/// Formats the name as in JSON.
impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Formats the name as in JSON.
impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Returns the findings of `facts` by group. Within a group, the worst finding is first.
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut all = vec![];
    let conf = chain::examine(facts, &mut Findings::new(Group::Chain, &mut all));
    let conf = conf.as_ref();
    kernel::examine(facts, conf, &mut Findings::new(Group::Kernel, &mut all));
    devices::examine(facts, &mut Findings::new(Group::Devices, &mut all));
    switches::examine(facts, &mut Findings::new(Group::Devices, &mut all));
    gpudirect::examine(facts, &mut Findings::new(Group::Devices, &mut all));
    pods::examine(facts, conf, &mut Findings::new(Group::Pods, &mut all));
    services::examine(facts, conf, &mut Findings::new(Group::Services, &mut all));
    records::examine(facts, conf, &mut Findings::new(Group::Records, &mut all));
    all.sort_by_key(|finding| (finding.group, std::cmp::Reverse(finding.severity)));
    all
}

/// Collector of the findings of one group.
struct Findings<'a> {
    group: Group,
    all: &'a mut Vec<Finding>,
}

impl<'a> Findings<'a> {
    fn new(group: Group, all: &'a mut Vec<Finding>) -> Self {
        Self { group, all }
    }

    fn ok(&mut self, what: impl Into<String>) {
        self.add(Severity::Ok, what.into(), None);
    }

    fn note(&mut self, what: impl Into<String>) {
        self.add(Severity::Note, what.into(), None);
    }

    fn warning(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Warning, what.into(), Some(remedy.into()));
    }

    fn error(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Error, what.into(), Some(remedy.into()));
    }

    /// Adds a note with a remedy.
    fn advice(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Note, what.into(), Some(remedy.into()));
    }

    /// Adds an error of `rdma-cni` as a finding. The remedy is the error's text after the last semicolon, if any.
    fn refusal(&mut self, severity: Severity, error: &impl fmt::Display) {
        let text = error.to_string();
        let (what, remedy) = match text.rsplit_once("; ") {
            Some((what, remedy)) => (what.to_owned(), Some(remedy.to_owned())),
            None => (text, None),
        };
        self.add(severity, what, remedy);
    }

    fn add(&mut self, severity: Severity, what: String, remedy: Option<String>) {
        self.all.push(Finding {
            group: self.group,
            severity,
            what,
            remedy,
        });
    }
}

/// Joins the names like [`some`]. Returns `None` if there are no names.
fn named(names: impl IntoIterator<Item: ToString>) -> Option<String> {
    let names: Vec<String> = names.into_iter().map(|it| it.to_string()).collect();
    (!names.is_empty()).then(|| some(&names))
}

/// Joins up to four names. Of more names, joins three and counts the others, as in `a, b, c and 3 more`.
fn some(names: &[String]) -> String {
    let most = if names.len() > 4 { 3 } else { 4 };
    elided(names, most, ", ", " and ")
}

/// Formats a number with its noun, such as `1 pod` or `2 pods`.
fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

/// Formats an age, such as `100 s ago`.
fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7200 => format!("{} min ago", seconds / 60),
        7200..172_800 => format!("{} h ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}
