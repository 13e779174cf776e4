// SPDX-License-Identifier: Apache-2.0
//! The content of a lease file, in host-local's format: the container's id, CR LF, the interface's name. Versions of
//! host-local before 0.8 wrote only the container's id.

use rdma_netns::InterfaceName;
use std::fmt;

/// An attachment that has leases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner {
    /// Value of `CNI_CONTAINERID`.
    pub container: String,
    /// Value of `CNI_IFNAME`.
    pub interface: String,
}

impl Owner {
    /// Returns the attachment with this container id and interface name.
    pub fn new(container: &str, interface: &str) -> Self {
        Self {
            container: container.to_owned(),
            interface: interface.to_owned(),
        }
    }

    /// Returns the content of the owner's leases.
    pub fn content(&self) -> String {
        format!("{}\r\n{}", self.container, self.interface)
    }

    /// Returns a file name that no other owner has, because container ids contain no `@`.
    pub fn file_name(&self) -> String {
        format!("{}@{}", self.container, self.interface)
    }

    /// Parses a name that [`Self::file_name`] made.
    pub fn of_file_name(name: &str) -> Option<Self> {
        let (container, interface) = name.split_once('@')?;
        Some(Self::new(container, interface))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.container, self.interface)
    }
}

/// The content of a file whose name is an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lease {
    /// An attachment has the address.
    Of(Owner),
    /// A container has the address. An old version of host-local wrote no interface.
    OfContainer(String),
    /// The file is empty: host-local was killed after it had created the file, or the power failed before the
    /// content was on disk. No attachment uses this address.
    Empty,
    /// Neither host-local nor this plugin wrote the file.
    Foreign,
}

impl Lease {
    /// Parses a lease. Ignores white space around the content, as host-local does.
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
                Self::Of(Owner::new(container, interface))
            }
            None if is_id(text) => Self::OfContainer(text.to_owned()),
            _ => Self::Foreign,
        }
    }

    /// Returns true if the lease belongs to `owner`.
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
            Self::Foreign => f.write_str("a file that is not a lease and that DEL and GC keep"),
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
