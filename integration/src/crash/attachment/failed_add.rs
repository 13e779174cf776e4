// SPDX-License-Identifier: Apache-2.0
//! Objects that a failed ADD leaves until its DEL. After one error, only objects that error 107 lists are permitted.

use super::{Attachments, is_lasting};
use crate::crash::story::End;
use std::{fs, path::Path};

impl Attachments {
    /// Returns the objects that a failed ADD of the pod `a` left. Omits objects that error 107 lists. Call this
    /// function before DEL.
    pub(in crate::crash) fn left_by_error(&self, end: &End) -> Vec<String> {
        self.left_but(end, &is_lasting)
    }

    /// Returns the objects like [`Self::left_by_error`], after an ADD with two errors. The second error may leave
    /// addresses in IPAM, the record's lock, and a record that ADD's answer reports.
    pub(in crate::crash) fn left_by_two_errors(&self, end: &End) -> Vec<String> {
        let words = match end {
            End::Refused(_, words) => words,
            _ => "",
        };
        let may_stay = |path: &Path| self.is_of_a(path) && is_reported(path, words);
        self.left_but(end, &|path| is_lasting(path) || may_stay(path))
    }

    fn left_but(&self, end: &End, is_lasting: &dyn Fn(&Path) -> bool) -> Vec<String> {
        let End::Refused(code, words) = end else {
            return vec![];
        };
        let counted = |difference: String| match code {
            107 => unreported(&difference, words),
            _ => difference,
        };
        let mut left = self.in_namespaces(&[0], &counted);
        let files = self.files_but(is_lasting).into_iter().map(counted);
        left.extend(files.filter(|it| !it.is_empty()));
        if *code == 0 {
            left.push("it has no code".to_owned());
        }
        if !left.is_empty() {
            left.push(format!("before DEL, after error {code}: {words}"));
        }
        left
    }

    /// Returns true if a file is the record of the pod `a`, the record's lock, or an address that IPAM has leased to
    /// the pod.
    fn is_of_a(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|it| it.to_str());
        let is_named = name.is_some_and(|it| it.starts_with("a@"));
        let lease = || fs::read_to_string(path).is_ok_and(|it| it.lines().next() == Some("a"));
        is_named || lease()
    }
}

/// Returns true if `words` name the record at `path`, or report held addresses, for which the record remains. Also
/// returns true for other files, which need no report.
fn is_reported(path: &Path, words: &str) -> bool {
    let is_record = path.extension().is_some_and(|it| it == "json");
    let name = path.file_name().and_then(|it| it.to_str());
    let is_named = || name.is_some_and(|it| words.contains(it));
    !is_record || is_named() || words.contains("may still have addresses assigned to the pod")
}

/// Returns the lines of `difference` about netdevs, RDMA devices and files that `words` do not name.
fn unreported(difference: &str, words: &str) -> String {
    let is_name = |it: &&str| {
        let has = |what: fn(char) -> bool| it.contains(what);
        has(char::is_alphabetic) && has(|it| it.is_ascii_digit())
    };
    let is_unreported = |line: &&str| {
        let file = line
            .strip_suffix(" is there")
            .and_then(|it| it.rsplit('/').next());
        // a record and its lock have the same name up to the first dot
        let subject = file.map_or(*line, |it| it.split('.').next().unwrap_or(it));
        let mut names = subject.split(|it: char| !it.is_alphanumeric() && !"_-@".contains(it));
        !names.any(|it| is_name(&it) && words.contains(it))
    };
    let lines: Vec<&str> = difference.lines().filter(is_unreported).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::unreported;

    #[test]
    fn unnamed_leftovers_are_unreported() {
        let words = "restoring is incomplete: cannot move eth1: Out of memory; cannot remove \"/s/net/a@eth0.json\"";
        let difference = "host: - link eth1 mtu: 1500\n- link eth2 mtu: 1500";
        assert_eq!(unreported(difference, words), "- link eth2 mtu: 1500");
        for reported in ["/t/net/a@eth0.json is there", "/t/net/a@eth0.lock is there"] {
            assert_eq!(unreported(reported, words), "");
        }
        let lease = "/t1/leases/10.9.0.2 is there";
        assert_eq!(unreported(lease, words), lease);
    }
}
