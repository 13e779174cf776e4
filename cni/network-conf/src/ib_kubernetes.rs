// SPDX-License-Identifier: Apache-2.0
//! `ibKubernetesEnabled`, ib-sriov-cni's field: ib-kubernetes gives each pod of the network a GUID, and has the subnet
//! manager put it into the partition of `pkey`. It tells that in the pod's annotation, which Multus hands over
//! (`getNetConfNetns()`, `cmd/ib-sriov-cni/main.go` of k8snetworkplumbingwg/ib-sriov-cni).

use crate::Conf;
use conf_reader::{Field, Wrong};

/// In `args.cni`: that it is [`CONFIGURED`].
const STATE: &str = "mellanox.infiniband.app";

const CONFIGURED: &str = "configured";

/// Whether ib-kubernetes gives pods their GUIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IbKubernetes {
    /// It does not.
    #[default]
    Off,
    /// It does, and has not given the pod one yet.
    Pending,
    /// It has configured the pod.
    Configured,
}

/// Why a pod of ib-kubernetes cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IbKubernetesError {
    /// It may be configured later.
    #[error(
        "ibKubernetesEnabled: ib-kubernetes, which serves networks of type ib-sriov, has not configured the pod yet: \
         args.cni has no \"{STATE}\": \"{CONFIGURED}\""
    )]
    Pending,
    /// It is configured, and yet there is no GUID.
    #[error(
        "ibKubernetesEnabled: ib-kubernetes has configured the pod, and there is no GUID for it, neither in \
         runtimeConfig.infinibandGUID nor in args.cni.guid"
    )]
    NoGuid,
}

/// The field, and what `args` have for it.
///
/// # Errors
/// A value is wrong.
pub(super) fn parse(file: &Field<'_>) -> Result<IbKubernetes, Wrong> {
    let state = file.object("args")?.at("cni").at(STATE);
    let is_configured = state.value().is_some_and(|it| *it == CONFIGURED);
    Ok(match file.get("ibKubernetesEnabled")?.unwrap_or(false) {
        false => IbKubernetes::Off,
        true if is_configured => IbKubernetes::Configured,
        true => IbKubernetes::Pending,
    })
}

impl Conf {
    /// Whether the pod has what ib-kubernetes gives it, if it gives anything.
    ///
    /// # Errors
    /// It has not.
    pub fn check_ib_kubernetes(&self) -> Result<(), IbKubernetesError> {
        let has_guid = self.vf.iter().any(|it| it.guid().is_some());
        match self.ib_kubernetes {
            IbKubernetes::Pending => Err(IbKubernetesError::Pending),
            IbKubernetes::Configured if !has_guid => Err(IbKubernetesError::NoGuid),
            IbKubernetes::Configured | IbKubernetes::Off => Ok(()),
        }
    }
}
