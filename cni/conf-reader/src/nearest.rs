// SPDX-License-Identifier: Apache-2.0
//! The name that a misspelt one stands for.

/// Letters that may differ.
const MOST_EDITS: usize = 2;

/// The one of `known` that differs least from `name`, by at most two inserted, deleted or replaced letters, and by less
/// than half of its own; the case of letters does not count.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let distances = known.iter().map(|it| (edits(name, it), *it));
    let near = distances.filter(|(edits, it)| *edits <= MOST_EDITS && edits * 2 < it.len());
    near.min_by_key(|(edits, _)| *edits).map(|(_, it)| it)
}

/// Levenshtein's distance.
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.to_lowercase().chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (line, letter) in one.to_lowercase().chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, own) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *own);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names() {
        let known = ["mtu", "mode", "family", "from", "interfaceName"];
        for (name, expected) in [
            ("mtuu", Some("mtu")),
            ("MTU", Some("mtu")),
            ("famly", Some("family")),
            ("interfacename", Some("interfaceName")),
            ("form", None),
            ("frm", Some("from")),
            ("etcd_endpoints", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }
}
