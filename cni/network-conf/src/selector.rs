// SPDX-License-Identifier: Apache-2.0
//! Field `devices`: the selection of the node's netdevs and RDMA devices.

use conf_reader::{Field, Wrong};
use glob::{MatchOptions, Pattern};
use rdma_netns::{InterfaceName, Link, LinkType, Observed, RdmaDevice};

/// One selector. A device must match all keys of the selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// Text of the selector in the configuration, for messages.
    pub text: String,
    netdev: Option<Pattern>,
    rdma: Option<Pattern>,
    pci: Option<Pattern>,
    driver: Option<Pattern>,
    vendor: Option<Pattern>,
    link_type: Option<LinkType>,
}

/// A netdev with its hardware, to be compared with a selector.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Observed state, which contains the netdev's PCI functions and auxiliary devices.
    pub observed: &'a Observed,
    /// Netdev, with its name on the host.
    pub link: &'a Link,
    /// RDMA device of the netdev.
    pub rdma: Option<&'a RdmaDevice>,
}

const KEYS: [&str; 6] = ["netdev", "rdma", "pci", "driver", "vendor", "linkType"];

/// Options for matching hexadecimal numbers: upper and lower case are equal.
const HEXADECIMAL: MatchOptions = MatchOptions {
    case_sensitive: false,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

/// Characters that make a value a pattern.
const WILD: [char; 3] = ['*', '?', '['];

impl Selector {
    /// Parses one element of `devices`.
    pub(crate) fn parse(field: &Field<'_>) -> Result<Self, Wrong> {
        if let Some(key) = field.unknown(&KEYS).first() {
            let keys = KEYS.join(", ");
            return Err(field.wrong(format!("{key:?} is not one of {keys}")));
        }
        if !KEYS.iter().any(|key| field.has(key)) {
            return Err(field
                .wrong("must have at least one key: an empty selector would select every netdev"));
        }
        let pattern = |key: &str| -> Result<Option<Pattern>, Wrong> {
            let text: Option<String> = field.get(key)?;
            let pattern = text.map(|text| Pattern::new(&text)).transpose();
            pattern.map_err(|error| field.wrong(format!("{key}: {}", error.msg)))
        };
        let types = [
            ("ether", LinkType::Ether),
            ("infiniband", LinkType::Infiniband),
        ];
        Ok(Self {
            text: field.json().unwrap_or_default(),
            netdev: pattern("netdev")?,
            rdma: pattern("rdma")?,
            pci: pattern("pci")?,
            driver: pattern("driver")?,
            vendor: pattern("vendor")?,
            link_type: field.choice("linkType", &types)?,
        })
    }

    /// Returns true if `candidate` matches all keys. For a NIC with several functions, a key may match any of the
    /// functions. The key `pci` does not match a function that may belong to another NIC. A sub-function also matches
    /// by the driver of its PCI function.
    pub fn matches(&self, candidate: Candidate<'_>) -> bool {
        let Candidate {
            observed,
            link,
            rdma,
        } = candidate;
        let functions = || match &link.parent {
            Some(_) => observed.functions_of(link, rdma),
            None => Vec::new(),
        };
        let drivers = || {
            let functions = functions().into_iter().flat_map(|device| {
                let below = device.physical_function.as_ref();
                let below = below.filter(|_| device.address.bus() == "auxiliary");
                [Some(device), below.and_then(|it| observed.device(it))]
            });
            functions.flatten().filter_map(|it| it.driver.as_deref())
        };
        let addresses = || {
            let all = functions();
            let certain = all.iter().map(|it| &it.address);
            let certain = certain.filter(|it| all.iter().all(|device| device.has_function(it)));
            certain.chain(&link.parent).cloned().collect::<Vec<_>>()
        };
        let fits = |pattern: &Option<Pattern>, text: Option<&str>| match pattern {
            None => true,
            Some(pattern) => text.is_some_and(|text| pattern.matches(text)),
        };
        let fits_hexadecimal = |pattern: &Option<Pattern>, texts: &dyn Fn() -> Vec<String>| {
            pattern.as_ref().is_none_or(|pattern| {
                let mut texts = texts().into_iter();
                texts.any(|text| pattern.matches_with(&text, HEXADECIMAL))
            })
        };
        let name_fits = match &self.netdev {
            None => true,
            Some(pattern) => {
                pattern.matches(&link.name) || link.alt_names.iter().any(|n| pattern.matches(n))
            }
        };
        name_fits
            && fits(&self.rdma, rdma.map(|rdma| rdma.name.as_str()))
            && fits_hexadecimal(&self.pci, &|| {
                addresses().into_iter().map(String::from).collect()
            })
            && (self.driver.is_none() || drivers().any(|it| fits(&self.driver, Some(it))))
            && fits_hexadecimal(&self.vendor, &|| {
                functions()
                    .into_iter()
                    .filter_map(|it| it.vendor.clone())
                    .collect()
            })
            && self
                .link_type
                .is_none_or(|link_type| link.link_type == link_type)
    }

    /// Returns true if the selector has the key `rdma`, and `name` matches the key's value.
    pub fn fits_rdma(&self, name: &str) -> bool {
        self.rdma
            .as_ref()
            .is_some_and(|pattern| pattern.matches(name))
    }

    /// Returns the netdev's name if the value of the key `netdev` is no pattern.
    pub fn literal_netdev(&self) -> Option<InterfaceName> {
        InterfaceName::try_from(self.netdev.as_ref()?.as_str())
            .ok()
            .filter(|name| !name.contains(WILD))
    }

    /// Returns true if the selector has the key `netdev`, `rdma` or `pci`.
    pub fn has_names(&self) -> bool {
        self.netdev.is_some() || self.rdma.is_some() || self.pci.is_some()
    }

    /// Returns true if the selector names one particular device. ADD fails if no device matches such a selector.
    pub fn is_literal(&self) -> bool {
        [&self.netdev, &self.rdma, &self.pci]
            .into_iter()
            .flatten()
            .any(|pattern| !pattern.as_str().contains(WILD))
    }
}
