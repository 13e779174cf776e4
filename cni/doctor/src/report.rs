// SPDX-License-Identifier: Apache-2.0
//! Formats the findings as text. Each note, warning and error begins a line, and its remedy begins a line below it. The
//! confirmations (`ok`) of a group share a line.

use super::{
    examine::{Finding, Severity, counted},
    facts::{Facts, Unseen},
};
use conf_reader::one_line;
use std::fmt::Write as _;

/// Column in which findings begin.
const INDENT: usize = 18;

/// Number of columns of the output.
const WIDTH: usize = 100;

/// Formats the findings as text.
pub fn report(facts: &Facts, findings: &[Finding]) -> String {
    let mut text = head(facts);
    let mut group = None;
    let (fine, others): (Vec<&Finding>, Vec<&Finding>) =
        findings.iter().partition(|it| it.severity == Severity::Ok);
    let mut groups: Vec<_> = findings.iter().map(|it| it.group).collect();
    groups.dedup();
    for of in groups {
        let mut line = |text: &mut String, severity: Severity, what: &str| {
            let name = match group == Some(of) {
                true => String::new(),
                false => of.to_string(),
            };
            group = Some(of);
            let _ = write!(text, "{name:<9}{severity:<9}");
            push_wrapped(text, what, INDENT);
        };
        for finding in others.iter().filter(|it| it.group == of) {
            line(&mut text, finding.severity, &finding.what);
            if let Some(remedy) = &finding.remedy {
                let _ = write!(text, "{:INDENT$}-> ", "");
                push_wrapped(&mut text, remedy, INDENT + 3);
            }
        }
        let fine = fine.iter().filter(|it| it.group == of);
        let fine: Vec<&str> = fine.map(|it| it.what.as_str()).collect();
        if !fine.is_empty() {
            line(&mut text, Severity::Ok, &fine.join("; "));
        }
    }
    for unseen in &facts.unseen {
        let _ = write!(text, "{:<INDENT$}", "not seen");
        push_wrapped(
            &mut text,
            &format!("{}: {}", unseen.what, unseen.why),
            INDENT,
        );
    }
    let _ = writeln!(text, "\n{}", summary(facts, findings));
    text
}

/// Appends `words` and a newline to `text`, whose last line has `indent` columns. If the line is full, continues in
/// column `indent` of the next line. A word that is longer than a line remains whole.
fn push_wrapped(text: &mut String, words: &str, indent: usize) {
    let mut column = indent;
    // escape line breaks, because parts of `words` come from outside: a NIC's name, a file's text
    for (index, word) in one_line(words).split(' ').enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > WIDTH {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

fn head(facts: &Facts) -> String {
    let mode = facts.observed.as_ref().and_then(|it| it.rdma_mode);
    let mode = match mode {
        Some(mode) => format!("RDMA netns mode {mode}"),
        None => "no RDMA subsystem".to_owned(),
    };
    let release = match facts.release.is_empty() {
        true => "of unknown release",
        false => &facts.release,
    };
    format!(
        "rdma-device-plugin {}, kernel {release}, {mode}\n\n",
        facts.version
    )
}

fn summary(facts: &Facts, findings: &[Finding]) -> String {
    let severities = [Severity::Error, Severity::Warning, Severity::Note];
    let text = counted(findings, &severities);
    let text = text.unwrap_or_else(|| "nothing to do".to_owned());
    let mut remedies: Vec<&str> = facts.unseen.iter().filter_map(Unseen::remedy).collect();
    remedies.sort_unstable();
    remedies.dedup();
    match (facts.unseen.len(), remedies.is_empty()) {
        (0, _) => text,
        (unseen, true) => format!("{text}; {unseen} not seen, for the reasons above"),
        (unseen, false) => format!("{text}; {unseen} not seen: {}", remedies.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_makes_no_line_of_the_report() {
        let mut text = String::new();
        push_wrapped(
            &mut text,
            "file \"a\u{1b}[2J\nAll is fine\" is wrong",
            INDENT,
        );
        assert_eq!(text, "file \"a\\u{1b}[2J\\nAll is fine\" is wrong\n");
    }
}
