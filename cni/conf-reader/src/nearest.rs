// SPDX-License-Identifier: Apache-2.0
//! Search for the known name that is most similar to a misspelt name.

/// Largest edit distance of a suggested name, in letters.
const MOST_EDITS: usize = 2;

/// Returns the name in `known` with the smallest edit distance to `name`. The edit distance counts inserted, deleted,
/// replaced and exchanged letters, without regard to case. Ignores known names whose distance is above two, or at least
/// half of their length.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    let edits = |known: &str| strsim::osa_distance(&name, &known.to_lowercase());
    let distances = known.iter().map(|it| (edits(it), *it));
    let near = distances.filter(|(edits, it)| *edits <= MOST_EDITS && edits * 2 < it.len());
    near.min_by_key(|(edits, _)| *edits).map(|(_, it)| it)
}

/// Returns the text of the error for the field `name`, which is not in `known`.
pub fn not_known(name: &str, known: &[&str]) -> String {
    match nearest(name, known) {
        Some(it) => format!("not known: did you mean {it}?"),
        None => format!("not known; the fields here are {}", known.join(", ")),
    }
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
            ("form", Some("from")),
            ("fmor", None),
            ("frm", Some("from")),
            ("etcd_endpoints", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, &known), expected, "{name}");
        }
    }
}
