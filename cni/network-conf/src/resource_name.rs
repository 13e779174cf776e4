// SPDX-License-Identifier: Apache-2.0
//! Names of Kubernetes' extended resources.

use conf_reader::{Field, Wrong};
use serde::Deserialize;
use std::fmt;

/// Name of a resource in the form that kubelet accepts, such as `rdma/hca`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct ResourceName(String);

/// Longest prefix in bytes. The prefix is a DNS subdomain (RFC 1123; `DNS1123SubdomainMaxLength`).
const LONGEST_PREFIX: usize = 253;

/// Longest name after the prefix, in bytes (`qualifiedNameMaxLength`).
const LONGEST_NAME: usize = 63;

/// Length of the prefix that Kubernetes adds to the name in a quota. The name with this prefix must also be valid.
const QUOTA: usize = "requests.".len();

impl ResourceName {
    /// Checks the name as kubelet does (`IsExtendedResourceName` in `pkg/apis/core/v1/helper/helpers.go`).
    ///
    /// # Errors
    /// Kubelet refuses the name, for the reason given.
    pub fn new(name: &str) -> Result<Self, String> {
        match broken_rule(name) {
            Some(rule) => Err(format!("{name:?} is not a valid resource name: {rule}")),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// Checks the name. The error refers to `field`, from whose value the name is derived.
    ///
    /// # Errors
    /// Kubelet refuses the name.
    pub fn at(name: &str, field: &Field<'_>) -> Result<Self, Wrong> {
        Self::new(name).map_err(|error| field.refused(error))
    }

    /// Returns the name with its prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ResourceName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::new(&name)
    }
}

/// Returns the rule that makes kubelet refuse the name `name`. Returns `None` for a valid name.
pub(crate) fn broken_rule(name: &str) -> Option<&'static str> {
    let Some((prefix, rest)) = name.split_once('/') else {
        return Some("it must have a prefix, as rdma/hca has");
    };
    if rest.contains('/') {
        return Some("it must have exactly one /");
    }
    if prefix.ends_with("kubernetes.io") {
        return Some("the prefix must not end with kubernetes.io");
    }
    if name.starts_with("requests.") {
        return Some("the name must not begin with \"requests.\"");
    }
    if prefix.len() + QUOTA > LONGEST_PREFIX {
        return Some("the prefix may have at most 244 characters");
    }
    if !prefix.split('.').all(is_label) {
        return Some(
            "the prefix must be a domain: parts of lower-case letters, digits and - (not first or last), separated \
             by dots",
        );
    }
    if rest.len() > LONGEST_NAME {
        return Some("after the prefix there may be at most 63 characters");
    }
    (!is_name(rest)).then_some(
        "after the prefix there must be letters, digits, -, _ and ., first and last a letter or digit",
    )
}

/// Returns true if `name` is valid as the part after a prefix, and as the value of a label (`qualifiedNameFmt` in
/// Kubernetes' validation).
pub fn is_name(name: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let bytes = name.as_bytes();
    let is_made_of_them = ends(bytes.first()) && ends(bytes.last()) && bytes.iter().all(inner);
    name.len() <= LONGEST_NAME && is_made_of_them
}

/// Returns true if `text` is a DNS subdomain in Kubernetes (RFC 1123; `IsDNS1123Subdomain`).
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= LONGEST_PREFIX && text.split('.').all(is_label)
}

/// Returns true if `label` can be a part of a DNS subdomain in Kubernetes (`dns1123LabelFmt`).
fn is_label(label: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !label.is_empty()
        && label.bytes().all(inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl fmt::Display for ResourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_kubelet_accepts() {
        let longest = format!("{}/{}", "a".repeat(244), "b".repeat(63));
        for name in [
            "rdma/hca",
            "rdma/hca_shared_devices_a",
            "aliyun/erdma",
            "intel.com/mlnx_sriov.rdma-1",
            "nvidia.com/0",
            &longest,
        ] {
            let kept = ResourceName::new(name).map(|name| name.as_str().to_owned());
            assert_eq!(kept.as_deref(), Ok(name));
        }
    }

    #[test]
    fn names_that_kubelet_refuses() {
        let long_prefix = format!("{}/hca", "a".repeat(245));
        let long_name = format!("rdma/{}", "b".repeat(64));
        for (name, rule) in [
            ("", "must have a prefix"),
            ("hca", "must have a prefix"),
            ("rdma/", "first and last"),
            ("/hca", "must be a domain"),
            ("rdma/hca/1", "one /"),
            ("kubernetes.io/hca", "must not end"),
            ("node.kubernetes.io/hca", "must not end"),
            ("requests.rdma/hca", "must not begin"),
            ("RDMA/hca", "must be a domain"),
            ("rdma_x/hca", "must be a domain"),
            ("rdma..com/hca", "must be a domain"),
            ("-rdma/hca", "must be a domain"),
            ("rdma/-hca", "first and last"),
            ("rdma/h ca", "first and last"),
            ("rdma/hcä", "first and last"),
            (&long_prefix, "at most 244"),
            (&long_name, "at most 63"),
        ] {
            let refused = ResourceName::new(name).expect_err(name).to_string();
            assert!(refused.contains(rule), "{refused}");
            assert!(refused.contains(&format!("{name:?}")), "{refused}");
        }
    }
}
