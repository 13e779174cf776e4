// SPDX-License-Identifier: Apache-2.0
//! The name that a misspelt one stands for.

/// Letters that may differ.
const MOST_EDITS: usize = 2;

/// The one of `known` that differs least from `name`, by at most two inserted, deleted or replaced letters, and by less
/// than half of its own; the case of letters does not count.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let name = name.to_lowercase();
    let edits = |known: &str| strsim::levenshtein(&name, &known.to_lowercase());
    let distances = known.iter().map(|it| (edits(it), *it));
    let near = distances.filter(|(edits, it)| *edits <= MOST_EDITS && edits * 2 < it.len());
    near.min_by_key(|(edits, _)| *edits).map(|(_, it)| it)
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
