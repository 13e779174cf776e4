// SPDX-License-Identifier: Apache-2.0
//! `pkey`: the partition of an IPoIB child. For a function that is moved, the field has ib-sriov-cni's meaning: it is
//! the partition to which ib-kubernetes makes the subnet manager add the pod's GUID (`README.md` of
//! k8snetworkplumbingwg/ib-sriov-cni). This plugin then sets nothing.

use conf_reader::{Field, Wrong};
use rdma_netns::Pkey;

/// Reads the field. An empty string counts as missing, as for Go's decoders.
///
/// # Errors
/// The value is wrong.
pub(super) fn parse(file: &Field<'_>) -> Result<Option<Pkey>, Wrong> {
    let field = file.at("pkey");
    let Some(text) = field.read::<Option<String>>()?.filter(|it| !it.is_empty()) else {
        return Ok(None);
    };
    let key = text.parse::<Pkey>();
    key.map(Some)
        .map_err(|error| field.wrong(error.to_string()))
}
