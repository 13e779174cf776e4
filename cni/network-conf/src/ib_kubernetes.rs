// SPDX-License-Identifier: Apache-2.0
//! Field `ibKubernetesEnabled` of ib-sriov-cni. The controller ib-kubernetes assigns a GUID to each pod of the network,
//! and requests that the subnet manager adds the GUID to the partition of `pkey`. The controller writes the GUID and
//! its state into the pod's annotation, which Multus passes to plugins (`getNetConfNetns()`, `cmd/ib-sriov-cni/main.go`
//! of k8snetworkplumbingwg/ib-sriov-cni).

use crate::Conf;
use conf_reader::{Field, Wrong};

/// Key in `args.cni`. ib-kubernetes sets its value to [`CONFIGURED`].
const STATE: &str = "mellanox.infiniband.app";

const CONFIGURED: &str = "configured";

/// The state of ib-kubernetes for the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IbKubernetes {
    /// The network does not use ib-kubernetes.
    #[default]
    Off,
    /// ib-kubernetes has not configured the pod yet.
    Pending,
    /// ib-kubernetes has configured the pod.
    Configured,
}

/// The reason why a pod of ib-kubernetes cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IbKubernetesError {
    /// ib-kubernetes has not configured the pod yet, but may do so later.
    #[error(
        "ibKubernetesEnabled: ib-kubernetes, which serves networks of type ib-sriov, has not configured the pod yet: \
         args.cni has no \"{STATE}\": \"{CONFIGURED}\""
    )]
    Pending,
    /// ib-kubernetes has configured the pod, but passed no GUID.
    #[error(
        "ibKubernetesEnabled: ib-kubernetes has configured the pod, but passed no GUID, neither in \
         runtimeConfig.infinibandGUID nor in args.cni.guid"
    )]
    NoGuid,
}

/// Reads the field, and the pod's state from `args`.
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
    /// Checks that ib-kubernetes has configured the pod, if the network uses it.
    ///
    /// # Errors
    /// ib-kubernetes has not configured the pod, or passed no GUID.
    pub fn check_ib_kubernetes(&self) -> Result<(), IbKubernetesError> {
        let has_guid = self.vf.iter().any(|it| it.guid().is_some());
        match self.ib_kubernetes {
            IbKubernetes::Pending => Err(IbKubernetesError::Pending),
            IbKubernetes::Configured if !has_guid => Err(IbKubernetesError::NoGuid),
            IbKubernetes::Configured | IbKubernetes::Off => Ok(()),
        }
    }
}
