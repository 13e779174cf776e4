// SPDX-License-Identifier: Apache-2.0
//! ib-sriov-cni's `pkey`: the partition that ib-kubernetes has the subnet manager put the pod's GUID in
//! (`README.md` of k8snetworkplumbingwg/ib-sriov-cni). Whoever moves the function sets nothing for it.

use conf_reader::{Field, Wrong};
use std::fmt;

/// The bits that name the partition; the one above says whether its member is a full one (InfiniBand Architecture
/// Specification, volume 1, 10.9.1).
const BASE: u16 = 0x7fff;

/// A partition key (P_Key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pkey(pub u16);

impl fmt::Display for Pkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// The field; an empty text is none, as for Go's decoders.
///
/// # Errors
/// The value is wrong.
pub(super) fn parse(file: &Field<'_>) -> Result<Option<Pkey>, Wrong> {
    let field = file.at("pkey");
    let Some(text) = field.read::<Option<String>>()?.filter(|it| !it.is_empty()) else {
        return Ok(None);
    };
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let digits = digits.filter(|it| it.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let key = digits.and_then(|it| u16::from_str_radix(it, 16).ok());
    let wrong = || field.wrong("must be a partition key, as 0x8001");
    let key = key.filter(|it| it & BASE != 0).ok_or_else(wrong)?;
    Ok(Some(Pkey(key)))
}
