// SPDX-License-Identifier: Apache-2.0
//! Names of IPoIB children on the host.

use crate::Key;
use fnv::FnvHasher;
use rdma_netns::InterfaceName;
use std::hash::Hasher;

const PREFIX: &str = "rdma-";

/// Number of hexadecimal digits in a name that identify the attachment. Two more digits are the rail's index.
const DIGITS: usize = 8;

/// Returns the child's name on the host, for rail `index`. A 32-bit hash of `key` in the name distinguishes
/// attachments. Returns `None` if `index` has more than two hexadecimal digits.
pub(crate) fn made_as(key: &Key, index: usize) -> Option<InterfaceName> {
    InterfaceName::try_from(format!("{}{index:02x}", of_attachment(key))).ok()
}

/// Returns the common prefix of the names of an attachment's children. All versions of this plugin must use the same
/// prefix: a later or earlier version may have to find the children.
fn of_attachment(key: &Key) -> String {
    let mut hasher = FnvHasher::default();
    hasher.write(format!("{}/{}@{}", key.network, key.container, key.interface).as_bytes());
    format!("{PREFIX}{:0DIGITS$x}", hasher.finish() as u32)
}

/// Returns true if `name` has the form of a child's name, but is the name of no child of the attachments in `keys`.
pub fn is_orphaned_child(name: &str, keys: &[Key]) -> bool {
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    let is_hexadecimal = |it: u8| matches!(it, b'0'..=b'9' | b'a'..=b'f');
    let is_one = digits.len() == DIGITS + 2 && digits.bytes().all(is_hexadecimal);
    is_one
        && keys
            .iter()
            .all(|key| !name.starts_with(&of_attachment(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_identifies_the_parent_of_a_child() {
        let key = |container: &str| Key {
            network: "net".to_owned(),
            container: container.to_owned(),
            interface: InterfaceName::try_from("eth0").expect("a name"),
        };
        let name = made_as(&key("a"), 17).expect("a name");
        assert_eq!(&*name, "rdma-4fd7855511");
        assert!(!is_orphaned_child(&name, &[key("b"), key("a")]));
        assert!(is_orphaned_child(&name, &[key("b")]));
        for theirs in [
            "",
            "rdma0",
            "rdma-ib0",
            "rdma-0123456789ab",
            "rdma-012345678G",
        ] {
            assert!(!is_orphaned_child(theirs, &[]), "{theirs}");
        }
    }
}
