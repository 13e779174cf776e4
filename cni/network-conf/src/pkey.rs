// SPDX-License-Identifier: Apache-2.0
//! `pkey`: the partition of an IPoIB child. Of a function that moves it has ib-sriov-cni's meaning: the partition that
//! ib-kubernetes has the subnet manager put the pod's GUID in (`README.md` of k8snetworkplumbingwg/ib-sriov-cni).
//! Whoever moves the function sets nothing for it.

use conf_reader::{Field, Wrong};
use rdma_netns::Pkey;

/// The field; an empty text is none, as for Go's decoders.
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
