// SPDX-License-Identifier: Apache-2.0
//! A field of ib-sriov-cni that this version does not do. It is not dropped: a tenant without its P_Key would be in the
//! default partition.

use cni_protocol::ConfError;
use conf_reader::Field;

const REMEDY: &str = "this version does not set it, and the pod would start without; have \
                      ib-sriov-cni do it, in front of this plugin, and leave it out here";

/// Refuses what would be dropped. An empty text is none, as for Go's decoders.
///
/// # Errors
/// A field is there that this version does not do.
pub(super) fn check(file: &Field<'_>) -> Result<(), ConfError> {
    match file.at("pkey").value().filter(|value| *value != "") {
        None => Ok(()),
        Some(value) => Err(ConfError::Unsupported {
            field: "pkey",
            value: value.to_string(),
            remedy: REMEDY,
        }),
    }
}
