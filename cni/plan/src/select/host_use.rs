// SPDX-License-Identifier: Apache-2.0
//! Uses of a device by the host. ADD moves a device that the host uses only if the configuration names the device
//! literally with `mode` `move`. A shared device always stays on the host, so a pattern of names selects it even if the
//! host needs it, but not if it is another netdev's port.

use super::SelectError;
use network_conf::{Mode, selector::Selector};
use rdma_netns::{Link, Namespace, Observed, RdmaDevice, Uplink};
use std::collections::BTreeMap;

/// The way in which the configuration or kubelet selected a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Naming {
    /// Selected by name or address.
    Literal,
    /// Selected by a pattern of names or addresses.
    Pattern,
    /// Selected by its driver, vendor or link type.
    Kind,
    /// Allocated by kubelet.
    Kubelet,
}

impl From<&Selector> for Naming {
    fn from(selector: &Selector) -> Self {
        match (selector.is_literal(), selector.has_names()) {
            (true, _) => Self::Literal,
            (false, true) => Self::Pattern,
            (false, false) => Self::Kind,
        }
    }
}

/// The host's uses of its devices.
pub(super) struct HostUse<'a> {
    host: &'a Namespace,
    uplinks: BTreeMap<u32, Uplink>,
}

impl<'a> HostUse<'a> {
    pub(super) fn of(observed: &'a Observed) -> Self {
        Self {
            host: &observed.host,
            uplinks: observed.host.uplinks(&observed.api_servers),
        }
    }

    /// Returns the reason why a selection by `naming` ignores `link`. Returns `None` if it may select `link`.
    pub(super) fn passes_over(
        &self,
        naming: Naming,
        is_shared: bool,
        link: &Link,
        rdma: Option<&RdmaDevice>,
    ) -> Option<String> {
        match (naming, is_shared) {
            (Naming::Literal | Naming::Kubelet, _) => None,
            (Naming::Kind, true) => self.uplink(link).or_else(|| self.port(link)),
            (Naming::Pattern, true) => self.port(link),
            (_, false) => self.port(link).or_else(|| self.need(link, rdma)),
        }
    }

    pub(super) fn movable(
        &self,
        naming: Naming,
        mode: Mode,
        link: &Link,
        rdma: Option<&RdmaDevice>,
    ) -> Result<(), SelectError> {
        refusal(naming, mode, &link.name, self.need(link, rdma))
    }

    /// Returns an error if `rdma` must not be moved. Does not check the netdev of `rdma`: an earlier plugin of the
    /// chain has moved that netdev, or `rdma` has none.
    pub(super) fn rdma_movable(
        &self,
        naming: Naming,
        mode: Mode,
        rdma: Option<&RdmaDevice>,
    ) -> Result<(), SelectError> {
        match rdma {
            None => Ok(()),
            Some(rdma) => refusal(naming, mode, &rdma.name, users(rdma)),
        }
    }

    /// Returns the reason why the host needs `link`, if it does.
    fn need(&self, link: &Link, rdma: Option<&RdmaDevice>) -> Option<String> {
        self.uplink(link)
            .or_else(|| {
                Some(format!(
                    "{} lies on it",
                    link.above(&self.host.links)?.describe()
                ))
            })
            .or_else(|| users(rdma?))
    }

    fn uplink(&self, link: &Link) -> Option<String> {
        self.uplinks.get(&link.index).map(ToString::to_string)
    }

    /// Describes `link` in one of three cases:
    ///
    /// - another netdev accelerates `link`;
    /// - `link` accelerates another netdev;
    /// - `link` is a port of another netdev, such as a bridge, an Open vSwitch or a bond.
    fn port(&self, link: &Link) -> Option<String> {
        if let Some(port) = self.host.accelerator_of(link) {
            let port = &port.name;
            return Some(format!(
                "{port} accelerates this netdev, which the node uses itself"
            ));
        }
        if let Some(master) = self.host.accelerated_by(link) {
            let master = &master.name;
            return Some(format!("it accelerates {master}, the node's own netdev"));
        }
        let master = self.host.link_by_index(link.master?);
        let name = master.map_or("another netdev", |master| &master.name);
        Some(format!("it is a port of {name}"))
    }
}

/// Returns the error for the device `name` if the host needs it for the reason `why`. Returns no error if the
/// configuration forces the move.
fn refusal(naming: Naming, mode: Mode, name: &str, why: Option<String>) -> Result<(), SelectError> {
    let remedy = match (naming, mode) {
        (Naming::Literal, Mode::Move) => return Ok(()),
        (Naming::Kubelet, _) => {
            "remove the device from the resource from which kubelet allocated it"
        }
        _ => "set mode to \"move\" to move it nevertheless",
    };
    match why {
        None => Ok(()),
        Some(why) => Err(SelectError::NeededByHost {
            link: name.to_owned(),
            why,
            remedy,
        }),
    }
}

/// Describes the kernel's users of an RDMA device, such as `rpcrdma` (NFS).
fn users(rdma: &RdmaDevice) -> Option<String> {
    let users = rdma.kernel_users.join(", ");
    (!users.is_empty()).then(|| format!("the host uses {} itself ({users})", rdma.name))
}
