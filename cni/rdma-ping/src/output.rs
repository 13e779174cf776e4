// SPDX-License-Identifier: Apache-2.0
//! Formats the result as lines, as a matrix and as JSON.

use crate::{
    outcome::{Outcome, PeerRail},
    statistics::{Times, milliseconds},
};
use rdma_netns::sidr::AskError;
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    io::{self, Write},
};

/// Writes one line for the latest request of a pair, in a format like that of ping(8).
pub(crate) fn line(output: &mut dyn Write, round: u32, outcome: &Outcome) -> io::Result<()> {
    let to = &outcome.pair.to;
    let by = by(outcome);
    match (&outcome.failure, outcome.times.last()) {
        (None, Some(time)) => {
            let time = milliseconds(*time);
            writeln!(
                output,
                "answer from {to}: seq={round} time={time:.2} ms{by}"
            )
        }
        (Some(AskError::Silent { .. }), _) => {
            writeln!(output, "no answer from {to}: seq={round}{by}")
        }
        (Some(error), _) => writeln!(output, "{to}: seq={round} {error}"),
        (None, None) => Ok(()),
    }?;
    output.flush()
}

/// Describes the own end of the requests, such as ` by mlx5_0 port 1, 10.0.0.1`.
fn by(outcome: &Outcome) -> String {
    let Some((local, device)) = &outcome.local else {
        return String::new();
    };
    let address = local.address.map(|it| format!(", {it}"));
    format!(
        " by {device} port {}{}",
        local.port,
        address.unwrap_or_default()
    )
}

/// Returns the figures of each pair, and possible reasons why requests were not answered.
pub(crate) fn summary(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let name = name(outcome);
        let (sent, answered) = (outcome.sent, outcome.times.len());
        let times = Times::of(&outcome.times).map(|it| format!("; {it}"));
        let _ = writeln!(
            text,
            "{name}: {sent} sent, {answered} answered{}",
            times.unwrap_or_default()
        );
        text.extend(reason(outcome).map(|it| format!("{name}: {it}\n")));
    }
    text
}

fn name(outcome: &Outcome) -> String {
    let to = &outcome.pair.to;
    let from = outcome.pair.from.as_ref();
    from.map_or_else(|| to.clone(), |from| format!("{from} to {to}"))
}

/// Returns a table with own rails as rows and the peers' rails as columns. A cell contains the median time, or the
/// reason why there is none. If some answers are missing, the cell also contains the numbers of answers and requests.
/// Below the table are possible reasons why requests were not answered.
pub(crate) fn matrix(outcomes: &[Outcome]) -> String {
    let mut rows: Vec<&str> = vec![];
    let mut columns: Vec<&str> = vec![];
    for Outcome { pair, .. } in outcomes {
        let from = pair.from.as_deref().unwrap_or_default();
        if !rows.contains(&from) {
            rows.push(from);
        }
        if !columns.contains(&&*pair.to) {
            columns.push(&pair.to);
        }
    }
    let cell = |row: &str, column: &str| {
        let mut all = outcomes.iter();
        let found = all
            .find(|it| it.pair.from.as_deref().unwrap_or_default() == row && it.pair.to == column);
        found.map_or_else(String::new, cell)
    };
    let head = std::iter::once(String::new()).chain(columns.iter().map(|it| (*it).to_owned()));
    let mut table: Vec<Vec<String>> = vec![head.collect()];
    for row in rows {
        let cells = columns.iter().map(|column| cell(row, column));
        table.push(std::iter::once(row.to_owned()).chain(cells).collect());
    }
    let mut text = columns_of(&table);
    for outcome in outcomes {
        let name = name(outcome);
        text.extend(reason(outcome).map(|it| format!("{name}: {it}\n")));
    }
    text
}

/// Returns the table of [`matrix`] for the rails of two pods or nodes. Also names the own rails that the other end
/// lacks.
pub(crate) fn exchanged(own: &str, other: &str, outcomes: &[Outcome], alone: &[&str]) -> String {
    let mut text = format!("rails of {own} (rows) to rails of {other} (columns), median times\n");
    text.push_str(&matrix(outcomes));
    for rail in alone {
        let _ = writeln!(text, "{rail}: {other} has no such rail");
    }
    text
}

fn cell(outcome: &Outcome) -> String {
    if outcome.pair.addresses.is_none() {
        return "no common family".to_owned();
    }
    let (sent, answered) = (outcome.sent, outcome.times.len());
    match Times::of(&outcome.times) {
        None => "no answer".to_owned(),
        Some(times) if outcome.is_complete() => format!("{:.2} ms", times.median),
        Some(times) => format!("{:.2} ms ({answered}/{sent})", times.median),
    }
}

/// Formats the table. Each column is as wide as its longest cell.
fn columns_of(table: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = table.iter().filter_map(|row| row.get(column));
        cells.map(|it| it.chars().count()).max().unwrap_or_default()
    };
    let mut text = String::new();
    for row in table {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(line, "{cell:<0$}  ", width(column));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Returns a possible reason for requests without an answer. Returns `None` if all requests were answered, or if the
/// rails of the pair need not reach each other.
fn reason(outcome: &Outcome) -> Option<String> {
    let reason = fault(outcome)?;
    let rail = outcome.pair.rail.as_ref();
    let is_unseen = matches!(outcome.icmp, Some(Ok(false)))
        || matches!(outcome.failure, Some(AskError::Unresolved(_)));
    let may_be_in_pod = is_unseen && outcome.swapped_with.is_none() && outcome.times.is_empty();
    match rail.filter(|it| it.is_of_node && may_be_in_pod) {
        Some(PeerRail { peer, netdev, .. }) => Some(format!(
            "{reason}; or a pod has {netdev} of {peer}, so that the address does not answer (kubectl rdma pods -A)"
        )),
        None => Some(reason),
    }
}

/// Returns a fault that explains why requests were not answered.
fn fault(outcome: &Outcome) -> Option<String> {
    if !outcome.pair.is_required {
        return None;
    }
    if outcome.pair.addresses.is_none() {
        return Some("the two rails have no address of the same family".to_owned());
    }
    if let (Some(other), Some(rail)) = (&outcome.swapped_with, &outcome.pair.rail) {
        let own = &rail.netdev;
        return Some(format!(
            "{other} answers ARP or neighbour discovery on this wire, and {own} does not: the cables or VLANs of the two \
             are swapped"
        ));
    }
    let lost = outcome.sent as usize - outcome.times.len();
    let lossy = || {
        let sent = outcome.sent;
        format!("{lost} of {sent} requests were lost: look for a congested or faulty link")
    };
    let Some(failure) = &outcome.failure else {
        return (lost > 0).then(lossy);
    };
    let cause = match failure {
        AskError::Silent { .. } if !outcome.times.is_empty() => return Some(lossy()),
        AskError::Silent { .. } => {
            "RDMA does not answer: on Ethernet, check that UDP port 4791 passes, that the VLAN is the same, and that the \
             RDMA device of the peer has the address as a GID; on InfiniBand, check the partition"
        }
        AskError::Unresolved(_) => {
            "the next hop to the address does not answer ARP or neighbour discovery: check the VLAN"
        }
        AskError::NoPath(_) => "the subnet administrator has no path: check the partition",
        other => return Some(other.to_string()),
    };
    let icmp = match &outcome.icmp {
        Some(Ok(true)) => "the address answers ICMP".to_owned(),
        Some(Ok(false)) => {
            "the address does not answer ICMP either: check the peer, the cable and the switch port"
                .to_owned()
        }
        Some(Err(error)) => format!("ICMP could not be tried for comparison: {error}"),
        None => return Some(cause.to_owned()),
    };
    Some(format!("{cause}; {icmp}"))
}

pub(crate) fn json(outcomes: &[Outcome]) -> Value {
    let pair = |outcome: &Outcome| {
        let (source, to) = outcome.pair.addresses.unzip();
        let local = outcome.local.as_ref();
        json!({
            "from": {
                "rail": outcome.pair.from,
                "address": local.and_then(|(it, _)| it.address).or(source.flatten()),
                "device": local.map(|(_, device)| device),
                "port": local.map(|(it, _)| it.port),
            },
            "to": {"rail": outcome.pair.to, "address": to},
            "required": outcome.pair.is_required,
            "sent": outcome.sent,
            "answered": outcome.times.len(),
            "milliseconds": Times::of(&outcome.times),
            "icmp": outcome.icmp.as_ref().and_then(|it| it.as_ref().ok()),
            "swappedWith": outcome.swapped_with,
            "reason": reason(outcome),
        })
    };
    let pairs: Vec<Value> = outcomes.iter().map(pair).collect();
    json!({ "pairs": pairs })
}

/// Returns the document of [`json()`] for the rails of two pods or nodes. It also contains the own rails that the other
/// end lacks.
pub(crate) fn exchanged_json(
    own: &str,
    other: &str,
    outcomes: &[Outcome],
    alone: &[&str],
) -> Value {
    let mut document = json(outcomes);
    document["from"] = own.into();
    document["to"] = other.into();
    document["alone"] = alone.into();
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Pair;
    use rdma_netns::sidr::Local;
    use std::{net::IpAddr, time::Duration};

    fn outcome(from: &str, to: &str, sent: u32, times: &[u64]) -> Outcome {
        let address: IpAddr = "10.0.0.2".parse().expect("an address");
        let silent = AskError::Unresolved(address);
        Outcome {
            pair: Pair {
                from: Some(from.to_owned()),
                to: to.to_owned(),
                rail: None,
                addresses: Some((None, address)),
                is_required: true,
            },
            sent,
            times: times.iter().map(|it| Duration::from_millis(*it)).collect(),
            local: None,
            failure: times.is_empty().then_some(silent),
            icmp: None,
            swapped_with: None,
        }
    }

    #[test]
    fn the_matrix_has_a_cell_for_each_pair() {
        let mut all = vec![
            outcome("rdma0", "rdma0 of a/b", 2, &[1, 2]),
            outcome("rdma0", "rdma1 of a/b", 2, &[]),
            outcome("rdma1", "rdma0 of a/b", 2, &[3]),
            outcome("rdma1", "rdma1 of a/b", 0, &[]),
        ];
        (all[3].pair.addresses, all[3].failure) = (None, None);
        let text = matrix(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "       rdma0 of a/b   rdma1 of a/b",
                "rdma0  1.00 ms        no answer",
                "rdma1  3.00 ms (1/2)  no common family",
            ]
        );
        assert!(lines[3].starts_with("rdma0 to rdma1 of a/b: the next hop to the address"));
        assert_eq!(
            lines[4],
            "rdma1 to rdma0 of a/b: 1 of 2 requests were lost: look for a congested or faulty link"
        );
        assert_eq!(
            lines[5..],
            ["rdma1 to rdma1 of a/b: the two rails have no address of the same family"]
        );
    }

    #[test]
    fn a_nodes_rail_that_is_not_seen_may_be_in_a_pod() {
        let mut of_node = outcome("eth1", "eth1", 2, &[]);
        of_node.pair.rail = Some(PeerRail {
            peer: "node-2".to_owned(),
            netdev: "eth1".to_owned(),
            mac: None,
            is_same: true,
            is_of_node: true,
        });
        let hint = "; or a pod has eth1 of node-2, so that the address does not answer (kubectl rdma pods -A)";
        let has_hint = |it: &Outcome| reason(it).expect("a reason").ends_with(hint);
        assert!(has_hint(&of_node));
        of_node.swapped_with = Some("eth0".to_owned());
        assert!(!has_hint(&of_node));
        of_node.swapped_with = None;
        of_node.failure = Some(AskError::Silent {
            local: Local {
                device: 1,
                port: 1,
                address: None,
            },
            destination: "10.0.0.2".parse().expect("an address"),
        });
        of_node.icmp = Some(Ok(false));
        assert!(has_hint(&of_node));
        // the answer to ICMP proves that the node has the rail
        of_node.icmp = Some(Ok(true));
        assert!(!has_hint(&of_node));
        of_node.icmp = Some(Ok(false));
        of_node
            .pair
            .rail
            .iter_mut()
            .for_each(|it| it.is_of_node = false);
        assert!(!has_hint(&of_node));
    }

    /// Rails with different names may be in different networks.
    #[test]
    fn other_rails_need_no_answer() {
        let mut all = [
            outcome("rdma0", "rdma0", 2, &[1, 1]),
            outcome("rdma0", "rdma1", 2, &[]),
            outcome("rdma1", "rdma0", 2, &[]),
            outcome("rdma1", "rdma1", 2, &[2, 2]),
        ];
        for it in &mut all {
            it.pair.is_required = it.pair.from.as_ref() == Some(&it.pair.to);
        }
        assert!(all.iter().all(Outcome::is_good));
        let text = exchanged("node-a", "node-b", &all, &["rdma2"]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "rails of node-a (rows) to rails of node-b (columns), median times",
                "       rdma0      rdma1",
                "rdma0  1.00 ms    no answer",
                "rdma1  no answer  2.00 ms",
                "rdma2: node-b has no such rail",
            ]
        );
        let mut document = exchanged_json("node-a", "node-b", &all, &["rdma2"]);
        assert_eq!(document["pairs"].as_array().map(Vec::len), Some(4));
        document["pairs"].take();
        let names = json!({"from": "node-a", "to": "node-b", "alone": ["rdma2"], "pairs": null});
        assert_eq!(document, names);
        all[3].times.pop();
        assert!(!all[3].is_good());
    }

    #[test]
    fn json_has_the_same_figures() {
        let document = json(&[outcome("rdma0", "10.0.0.2", 2, &[1])]);
        let pair = &document["pairs"][0];
        assert_eq!((&pair["sent"], &pair["answered"]), (&json!(2), &json!(1)));
        assert_eq!(pair["milliseconds"]["median"], json!(1.0));
        assert_eq!(pair["from"]["rail"], "rdma0");
        assert_eq!(pair["to"]["address"], "10.0.0.2");
    }
}
