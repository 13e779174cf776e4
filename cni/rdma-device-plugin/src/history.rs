// SPDX-License-Identifier: Apache-2.0
//! Recent events for users: changes of devices' health, and the log's errors and warnings. The history is in memory
//! only, has a limited size, and begins with the daemon's start.

use conf_reader::one_line;
use node_state::node::Node;
use parking_lot::Mutex;
use rdma_netns::DeviceAddress;
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::SystemTime,
};

/// Number of health changes that the history keeps.
pub const CHANGES: usize = 100;
/// Number of log lines that the history keeps.
pub const LINES: usize = 50;
/// Maximum number of devices that one change lists by name. Several devices can change together, such as all virtual
/// functions of a NIC.
pub const NAMED: usize = 4;
/// Maximum number of characters of a reason or a line. The history replaces the rest by `…`.
pub const LONGEST: usize = 400;

/// Shared history; clones refer to one history.
#[derive(Clone, Debug)]
pub struct History(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    since: SystemTime,
    /// Unhealthy devices, including devices that have disappeared from their bus.
    known: Sick,
    changes: VecDeque<Change>,
    lines: VecDeque<Line>,
}

/// Name and fault of each unhealthy device. The key is the address, because an RDMA device can disappear and come back
/// with another name.
type Sick = BTreeMap<DeviceAddress, (String, String)>;

/// Devices whose health, or the reason for it, changed in the same way at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Time of the change.
    pub at: SystemTime,
    /// The first [`NAMED`] devices, as `0000:3b:00.0 (mlx5_0)`.
    pub devices: Vec<String>,
    /// Number of devices that `devices` does not list.
    pub more: usize,
    /// Reason why the devices are unhealthy now. `None`: they are healthy again.
    pub reason: Option<String>,
}

/// An error or a warning of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Time of the last occurrence.
    pub at: SystemTime,
    /// True for an error.
    pub is_error: bool,
    /// Text of the line.
    pub text: String,
    /// Number of successive occurrences of the line.
    pub times: usize,
}

impl Default for History {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Kept {
            since: SystemTime::now(),
            known: BTreeMap::new(),
            changes: VecDeque::new(),
            lines: VecDeque::new(),
        })))
    }
}

impl History {
    /// Returns the start time of the history.
    pub fn since(&self) -> SystemTime {
        self.0.lock().since
    }

    /// Returns the changes of health, the latest first.
    pub fn changes(&self) -> Vec<Change> {
        self.0.lock().changes.iter().rev().cloned().collect()
    }

    /// Returns errors and warnings, the latest first.
    pub fn lines(&self) -> Vec<Line> {
        self.0.lock().lines.iter().rev().cloned().collect()
    }

    /// Records the unhealthy and the gone devices of `node` at the time `at`.
    pub fn follow(&self, node: &Node, at: SystemTime) {
        let unhealthy = node.unhealthy.iter();
        let unhealthy = unhealthy.map(|(address, why)| {
            let function = node.inventory.function(address);
            let rdma = function.and_then(|it| it.hcas.first());
            let named = called(address, rdma.map(|it| &*it.name));
            (address.clone(), (named, why.clone()))
        });
        let losses = node.losses().into_iter();
        let gone = losses.filter(|it| it.is_gone).map(|gone| {
            let named = called(&gone.address, gone.rdma.as_deref());
            (gone.address, (named, gone.reason))
        });
        self.take(unhealthy.chain(gone).collect(), at);
    }

    fn take(&self, now: Sick, at: SystemTime) {
        let mut kept = self.0.lock();
        let mut changes: BTreeMap<Option<&str>, Vec<&str>> = BTreeMap::new();
        for (address, (name, _)) in &kept.known {
            if !now.contains_key(address) {
                changes.entry(None).or_default().push(name);
            }
        }
        for (address, (name, reason)) in &now {
            let known = kept.known.get(address);
            if known.is_none_or(|(_, before)| before != reason) {
                changes.entry(Some(reason)).or_default().push(name);
            }
        }
        let changes: Vec<Change> = changes
            .into_iter()
            .map(|(reason, names)| Change {
                at,
                more: names.len().saturating_sub(NAMED),
                devices: names.into_iter().take(NAMED).map(str::to_owned).collect(),
                reason: reason.map(cut),
            })
            .collect();
        for change in changes {
            push(&mut kept.changes, change, CHANGES);
        }
        kept.known = now;
    }

    /// Records a line of the log.
    pub fn line(&self, is_error: bool, text: &str, at: SystemTime) {
        let text = cut(&one_line(text));
        let mut kept = self.0.lock();
        match kept.lines.back_mut() {
            Some(last) if last.text == text && last.is_error == is_error => {
                (last.at, last.times) = (at, last.times + 1);
            }
            _ => {
                let line = Line {
                    at,
                    is_error,
                    text,
                    times: 1,
                };
                push(&mut kept.lines, line, LINES);
            }
        }
    }
}

/// Formats a device as `0000:3b:00.0 (mlx5_0)`.
fn called(address: &DeviceAddress, rdma: Option<&str>) -> String {
    match rdma {
        Some(rdma) => format!("{address} ({rdma})"),
        None => address.to_string(),
    }
}

fn push<T>(kept: &mut VecDeque<T>, one: T, most: usize) {
    if kept.len() == most {
        kept.pop_front();
    }
    kept.push_back(one);
}

fn cut(text: &str) -> String {
    let mut cut: String = text.chars().take(LONGEST).collect();
    if cut.len() < text.len() {
        cut.push('…');
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use offer::Gone;
    use std::time::{Duration, UNIX_EPOCH};

    fn unhealthy(devices: &[(&str, &str)]) -> Sick {
        let own = |(name, reason): &(&str, &str)| {
            let address = name.split(' ').next().unwrap_or_default().to_owned();
            let address = DeviceAddress::try_from(address).expect("an address");
            (address, ((*name).to_owned(), (*reason).to_owned()))
        };
        devices.iter().map(own).collect()
    }

    #[test]
    fn simultaneous_changes_are_one_change() {
        let history = History::default();
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let names: Vec<String> = (0..64).map(|it| format!("mlx5_core.sf.{it}")).collect();
        let down: Vec<(&str, &str)> = names.iter().map(|it| (it.as_str(), "no carrier")).collect();
        history.take(unhealthy(&down), at(1));
        history.take(unhealthy(&down), at(2));
        history.take(unhealthy(&[("mlx5_core.sf.0", "flapping")]), at(3));
        let changes: Vec<_> = history
            .changes()
            .into_iter()
            .map(|it| (it.at, it.devices.len() + it.more, it.reason))
            .collect();
        let flapping = Some("flapping".to_owned());
        let no_carrier = Some("no carrier".to_owned());
        let expected = [
            (at(3), 1, flapping),
            (at(3), 63, None),
            (at(1), 64, no_carrier),
        ];
        assert_eq!(changes, expected);
        assert_eq!(history.changes()[2].devices.len(), NAMED);
    }

    /// The history identifies a device by its address, because the device's name changes when its RDMA device
    /// disappears.
    #[test]
    fn a_device_is_identified_by_its_address() {
        let history = History::default();
        let now = SystemTime::now();
        let lost = "it has no RDMA device";
        for (name, reason) in [
            ("0000:3b:00.0 (mlx5_0)", "no carrier"),
            ("0000:3b:00.0", lost),
            ("0000:3b:00.0 (mlx5_0)", lost),
        ] {
            history.take(unhealthy(&[(name, reason)]), now);
        }
        history.take(unhealthy(&[]), now);
        let reasons: Vec<_> = history.changes().into_iter().map(|it| it.reason).collect();
        let expected = [None, Some(lost.to_owned()), Some("no carrier".to_owned())];
        assert_eq!(reasons, expected);
    }

    /// The name of the RDMA device is known only to a resource that this daemon has offered.
    #[test]
    fn a_gone_device_of_two_resources_has_its_known_name() {
        let address = || DeviceAddress::try_from("0000:9d:00.0".to_owned()).expect("an address");
        let gone = |rdma: Option<&str>| {
            vec![Gone {
                address: address(),
                rdma: rdma.map(str::to_owned),
            }]
        };
        let gone = BTreeMap::from([
            ("rdma/a".to_owned(), gone(Some("mlx5_2"))),
            ("rdma/b".to_owned(), gone(None)),
        ]);
        let history = History::default();
        let node = Node {
            gone,
            ..Node::default()
        };
        history.follow(&node, UNIX_EPOCH);
        let changes = history.changes();
        assert_eq!(changes[0].devices, ["0000:9d:00.0 (mlx5_2)"]);
        let reason = changes[0].reason.as_deref();
        assert_eq!(reason, Some("it is no longer on this node"));
    }

    #[test]
    fn the_history_is_bounded() {
        let history = History::default();
        let now = SystemTime::now();
        for turn in 0..1000 {
            let reason = format!("{turn} {}", "x".repeat(10_000));
            history.take(unhealthy(&[("mlx5_core.sf.0", &reason)]), now);
            history.line(true, &reason, now);
        }
        assert_eq!(history.changes().len(), CHANGES);
        assert_eq!(history.lines().len(), LINES);
        let first = history.lines().swap_remove(0).text;
        assert!(first.starts_with("999 "), "{first}");
        assert_eq!(first.chars().count(), LONGEST + 1);
    }

    #[test]
    fn a_line_is_kept_as_the_log_has_it() {
        let history = History::default();
        history.line(true, "process 17 (x\u{1b}\nz)", SystemTime::now());
        assert_eq!(history.lines()[0].text, "process 17 (x\\u{1b}\\nz)");
    }

    #[test]
    fn repeated_lines_are_counted() {
        let history = History::default();
        let now = SystemTime::now();
        for text in ["a", "a", "b", "a"] {
            history.line(false, text, now);
        }
        let times: Vec<_> = history.lines().iter().map(|it| it.times).collect();
        assert_eq!(times, [1, 1, 2]);
    }
}
