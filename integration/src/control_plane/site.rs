// SPDX-License-Identifier: Apache-2.0
//! Where a control plane runs: a network namespace with its addresses, and the keys of all who are known there.

use super::{ADDRESS, NODE, NODE_ADDRESS, SERVICE, repository};
use crate::{Netns, netns::check};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// What the nodes' NICs are on.
const BRIDGE: &str = "nodes";

/// The NIC of [`NODE`], as the namespace has it.
pub(super) const TAP: &str = "node";

/// The place of one control plane at a time.
#[derive(Debug)]
pub(super) struct Site {
    netns: Netns,
    pki: PathBuf,
}

impl Site {
    /// One that nobody else reaches. Keys, certificates and kubeconfigs are made in `pki`.
    #[track_caller]
    pub(super) fn new(pki: &Path) -> Self {
        let netns = Netns::new("control-plane");
        netns.ip("link set lo up");
        netns.ip(&format!("address add {ADDRESS}/32 dev lo"));
        let script = repository().join("integration/kubernetes/certificates");
        let node = format!("{NODE}={NODE_ADDRESS}");
        check(Command::new(script).arg(pki).args([ADDRESS, &node]));
        Self {
            netns,
            pki: pki.to_owned(),
        }
    }

    /// One that [`NODE`] reaches, a virtual machine whose NIC is on [`TAP`].
    #[track_caller]
    pub(super) fn with_node(pki: &Path) -> Self {
        let site = Self::new(pki);
        site.netns.ip_batch(&[
            format!("address delete {ADDRESS}/32 dev lo"),
            format!("address add {SERVICE}/32 dev lo"),
            format!("link add {BRIDGE} type bridge"),
            format!("address add {ADDRESS}/24 dev {BRIDGE}"),
            format!("tuntap add dev {TAP} mode tap"),
            format!("link set dev {TAP} master {BRIDGE} up"),
            format!("link set dev {BRIDGE} up"),
        ]);
        site
    }

    pub(super) fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The file `name` of the certificates and kubeconfigs.
    pub(super) fn pki(&self, name: &str) -> String {
        self.pki.join(name).display().to_string()
    }
}
