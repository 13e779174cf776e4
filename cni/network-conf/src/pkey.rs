// SPDX-License-Identifier: Apache-2.0
//! Field `pkey`: the partition of an IPoIB child. For a virtual function that moves, `rdma-cni` sets no partition. If
//! the network uses ib-kubernetes, ib-kubernetes requests, as for ib-sriov-cni, that the subnet manager adds the pod's
//! GUID to this partition (`README.md` of k8snetworkplumbingwg/ib-sriov-cni).

use conf_reader::{Field, Wrong};
use rdma_netns::Pkey;

/// Reads the field. An empty string counts as a missing field, as in Go's decoders.
///
/// # Errors
/// The value is wrong.
pub(super) fn parse(file: &Field<'_>) -> Result<Option<Pkey>, Wrong> {
    let field = file.at("pkey");
    let key = field.text()?.map(|text| text.parse::<Pkey>()).transpose();
    key.map_err(|error| field.wrong(error.to_string()))
}
