// SPDX-License-Identifier: Apache-2.0
//! Reads all addresses of the host's namespace by one dump, for programs that need nothing else.

use super::{HOST, Linux, addresses, cannot_read, namespace};
use crate::ObserveError;
use std::net::IpAddr;

impl Linux {
    /// Returns all addresses of all netdevs in this program's namespace, in the kernel's order.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, ObserveError> {
        let host = self
            .host()
            .map_err(cannot_read("the addresses of the host"))?;
        let answers = namespace::dump(host, HOST, "addresses", &addresses::dump())?;
        let seen = answers.bodies().filter_map(addresses::parse);
        Ok(seen.map(|it| it.address.ip).collect())
    }
}
