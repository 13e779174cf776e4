// SPDX-License-Identifier: Apache-2.0
//! Names that the kernel accepts for a network interface.

use crate::text_type::checked_text;
use serde::{Deserialize, Serialize};

/// A name that the kernel accepts for a network interface (`dev_valid_name()`, `net/core/dev.c`), or a replacement that
/// [`Self::of_index`] made. The name contains no `%`, because `dev_get_valid_name()` replaces `%d` by a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

checked_text!(InterfaceName);

/// Length of the longest name, bytes: `IFNAMSIZ` without the terminating NUL.
pub const MAX_INTERFACE_NAME: usize = 15;

/// Reason why a text is no interface name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text is empty.
    #[error("an interface name cannot be empty")]
    Empty,
    /// The text has more than [`MAX_INTERFACE_NAME`] bytes.
    #[error("interface name {0:?} has {len} bytes; at most {MAX_INTERFACE_NAME} are allowed", len = .0.len())]
    TooLong(String),
    /// The text is `.` or `..`, which are directories in sysfs.
    #[error("interface name {0:?} is reserved")]
    Reserved(String),
    /// The text contains `/`, `:`, `%`, NUL or white space, or a character with a byte that the kernel treats as white
    /// space.
    #[error("interface name {name:?} contains {character:?}")]
    Character {
        /// The whole name.
        name: String,
        /// The first character that is not allowed.
        character: char,
    },
}

impl TryFrom<String> for InterfaceName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        if name.is_empty() {
            return Err(InvalidName::Empty);
        }
        if name.len() > MAX_INTERFACE_NAME {
            return Err(InvalidName::TooLong(name));
        }
        if name == "." || name == ".." {
            return Err(InvalidName::Reserved(name));
        }
        // the kernel compares bytes, and treats 0xA0 as Latin-1's no-break space (`lib/ctype.c`)
        let has_space_byte = |c: char| c.encode_utf8(&mut [0; 4]).bytes().any(|it| it == 0xA0);
        let is_space = |c: char| c.is_ascii_whitespace() || c == '\x0b' || has_space_byte(c);
        let forbidden = |c: char| matches!(c, '/' | ':' | '%' | '\0') || is_space(c);
        if let Some(character) = name.chars().find(|c| forbidden(*c)) {
            return Err(InvalidName::Character { name, character });
        }
        Ok(Self(name))
    }
}

impl InterfaceName {
    /// Returns a replacement for the name of the netdev with `index`. A pod may use any bytes as a name, and may give
    /// the netdev's name to another netdev. The replacement contains `:`, which no valid name contains.
    pub fn of_index(index: u32) -> Self {
        Self(format!(":{index}"))
    }

    /// Returns the index from which [`Self::of_index`] made the name.
    pub fn index(&self) -> Option<u32> {
        self.0.strip_prefix(':')?.parse().ok()
    }
}

impl TryFrom<&str> for InterfaceName {
    type Error = InvalidName;

    fn try_from(name: &str) -> Result<Self, InvalidName> {
        Self::try_from(name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Deref as _;

    #[test]
    fn kernel_rules_are_kept() {
        for good in [
            "eth0",
            "a",
            "enp65s0f1np1",
            "rdma.100",
            "0123456789abcde",
            "eth0@x",
            "rå",
        ] {
            assert_eq!(InterfaceName::try_from(good).unwrap().deref(), good);
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "a:b",
            "a%d",
            "a b",
            "a\tb",
            "rà",
            "0123456789abcdef",
        ] {
            assert!(
                InterfaceName::try_from(bad).is_err(),
                "{bad:?} was accepted"
            );
        }
    }
}
