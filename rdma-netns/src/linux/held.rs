// SPDX-License-Identifier: Apache-2.0
//! The addresses of a namespace alone: one dump, for programs that need no more.

use super::{Linux, addresses, cannot_read, ip_of};
use crate::{ObserveError, netlink::attributes};
use std::net::IpAddr;

/// `sizeof(struct ifaddrmsg)`
const HEADER: usize = 8;

const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;

impl Linux {
    /// All addresses of all netdevs in the own namespace, in the kernel's order.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, ObserveError> {
        let what = "the addresses of the host";
        let host = self
            .host()
            .map_err(|error| cannot_read(what, error.into()))?;
        let answers = host.route().dump(&addresses::dump());
        let answers = answers.map_err(|error| cannot_read(what, error))?;
        Ok(answers.bodies().filter_map(parse).collect())
    }
}

/// The address of an `RTM_NEWADDR`.
pub(super) fn parse(body: &[u8]) -> Option<IpAddr> {
    let (mut local, mut end) = (None, None);
    for (kind, value) in attributes(body.get(HEADER..)?) {
        match kind {
            IFA_ADDRESS => end = ip_of(value),
            IFA_LOCAL => local = ip_of(value),
            _ => {}
        }
    }
    // IFA_ADDRESS is the other end where there is one, and IPv6 has IFA_LOCAL only then.
    local.or(end)
}
