// SPDX-License-Identifier: Apache-2.0
//! The content of a lease file, as host-local writes it: the container's id, CR LF, the interface's name. Versions of
//! host-local before 0.8 wrote only the container's id.

use rdma_netns::InterfaceName;
use std::fmt;

/// The attachment that holds addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// `CNI_CONTAINERID`
    pub container: String,
    /// `CNI_IFNAME`
    pub interface: String,
}

impl Owner {
    /// Returns the content of the owner's leases.
    pub fn content(&self) -> String {
        format!("{}\r\n{}", self.container, self.interface)
    }

    /// Returns a file name that no other owner has, because container ids contain no `@`.
    pub fn file_name(&self) -> String {
        format!("{}@{}", self.container, self.interface)
    }

    /// Parses a name of [`Self::file_name`].
    pub fn of_file_name(name: &str) -> Option<Self> {
        let (container, interface) = name.split_once('@')?;
        Some(Self {
            container: container.to_owned(),
            interface: interface.to_owned(),
        })
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.container, self.interface)
    }
}

/// The content of a file that is named after an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// An attachment holds the address.
    Of(Owner),
    /// A container holds the address. An old host-local did not write the interface.
    OfContainer(String),
    /// The file is empty. Either host-local was killed after creating it, or the power failed before its content was on
    /// disk. No attachment can have this address.
    Empty,
    /// No IPAM plugin wrote the file.
    Foreign,
}

impl Lease {
    /// Parses a lease. White space around the content is ignored, as in host-local.
    pub fn parse(content: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(content) else {
            return Self::Foreign;
        };
        let text = text.trim();
        if text.is_empty() {
            return Self::Empty;
        }
        let is_id = cni_protocol::environment::is_identifier;
        match text.split_once("\r\n") {
            Some((container, interface))
                if is_id(container) && InterfaceName::try_from(interface).is_ok() =>
            {
                Self::Of(Owner {
                    container: container.to_owned(),
                    interface: interface.to_owned(),
                })
            }
            None if is_id(text) => Self::OfContainer(text.to_owned()),
            _ => Self::Foreign,
        }
    }

    /// Reports whether `owner` holds the lease.
    pub fn is_of(&self, owner: &Owner) -> bool {
        match self {
            Self::Of(other) => other == owner,
            Self::OfContainer(container) => *container == owner.container,
            Self::Empty | Self::Foreign => false,
        }
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(owner) => write!(f, "{owner}"),
            Self::OfContainer(container) => write!(f, "{container}"),
            Self::Empty => f.write_str("an empty lease"),
            Self::Foreign => f.write_str("a file that is not a lease"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents() {
        let owner = Owner {
            container: "0a1b".into(),
            interface: "eth0".into(),
        };
        assert_eq!(
            Lease::parse(owner.content().as_bytes()),
            Lease::Of(owner.clone())
        );
        assert_eq!(Lease::parse(b"0a1b\r\neth0\n"), Lease::Of(owner.clone()));
        assert_eq!(Lease::parse(b"0a1b"), Lease::OfContainer("0a1b".into()));
        assert!(Lease::parse(b"0a1b\n").is_of(&owner));
        for empty in [&b""[..], b"\r\n"] {
            assert_eq!(Lease::parse(empty), Lease::Empty);
        }
        for foreign in [&b"two words"[..], b"a\nb", b"a\r\nb\r\nc", b"\xff"] {
            assert_eq!(Lease::parse(foreign), Lease::Foreign);
        }
        assert_eq!(Owner::of_file_name(&owner.file_name()), Some(owner));
    }
}
