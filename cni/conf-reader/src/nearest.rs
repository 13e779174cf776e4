// SPDX-License-Identifier: Apache-2.0
//! The known name that is nearest to a misspelt one.

/// Largest edit distance, letters.
const MOST_EDITS: usize = 2;

/// Returns the name in `known` with the smallest edit distance to `name`. The distance is at most two inserted,
/// deleted, replaced or exchanged letters, and less than half of the known name's length. Ignores case.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    let edits = |known: &str| strsim::osa_distance(&name, &known.to_lowercase());
    let distances = known.iter().map(|it| (edits(it), *it));
    let near = distances.filter(|(edits, it)| *edits <= MOST_EDITS && edits * 2 < it.len());
    near.min_by_key(|(edits, _)| *edits).map(|(_, it)| it)
}

/// Returns the problem of the field `name`, which is none of `known`.
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
