// SPDX-License-Identifier: Apache-2.0
//! User EIDs (`smcr ueid`). A user EID names a set of hosts. It applies to the whole node. Two hosts can use SMC-Rv2
//! only if they have a user EID in common. Generic netlink family `SMC_GEN_NETLINK` (`include/uapi/linux/smc.h`).

use crate::netlink::{
    Answers, NetlinkError, attribute,
    generic::{self, Family},
    text,
};
use nix::libc;
use std::io;

/// `SMC_GENL_FAMILY_NAME`
pub(super) const FAMILY: &str = "SMC_GEN_NETLINK";

/// `SMC_NETLINK_*`
const DUMP_UEID: u8 = 9;
const ADD_UEID: u8 = 10;
const REMOVE_UEID: u8 = 11;

/// `SMC_NLA_EID_TABLE_ENTRY`
const ENTRY: u16 = 1;

/// `SMC_MAX_EID_LEN`, bytes. A shorter EID is padded with blanks, because the kernel accepts no shorter EID
/// (`smc_nl_add_ueid()`, `net/smc/smc_clc.c`).
const LENGTH: usize = 32;

/// The user EIDs of the node.
#[derive(Debug)]
pub struct UserEids(Family);

impl UserEids {
    /// Opens the table of user EIDs.
    ///
    /// # Errors
    /// ENOENT: the kernel has no SMC, or no EIDs (before Linux 5.16).
    pub fn open() -> Result<Self, NetlinkError> {
        Family::open(FAMILY).map(Self)
    }

    /// Returns the user EIDs (`smcr ueid show`), without trailing blanks.
    pub fn list(&mut self) -> Result<Vec<String>, NetlinkError> {
        Ok(ueids(&self.0.dump(DUMP_UEID)?))
    }

    /// Adds an EID (`smcr ueid add UEID`).
    ///
    /// # Errors
    /// - EEXIST: the table already has the EID.
    /// - ERANGE: the table is full. The kernel returns this error even if the table already has the EID.
    /// - EINVAL: the EID is too long, has characters other than A-Z, 0-9, `.` and `-`, or begins with `.` or `-`
    ///   (`smc_clc_ueid_add()`, `smc_clc_ueid_valid()`).
    pub fn add(&mut self, ueid: &str) -> Result<(), NetlinkError> {
        self.change(ADD_UEID, ueid)
    }

    /// Removes an EID (`smcr ueid del UEID`).
    ///
    /// # Errors
    /// ENOENT: the table does not have the EID.
    pub fn remove(&mut self, ueid: &str) -> Result<(), NetlinkError> {
        self.change(REMOVE_UEID, ueid)
    }

    fn change(&mut self, command: u8, ueid: &str) -> Result<(), NetlinkError> {
        if ueid.len() > LENGTH {
            return Err(NetlinkError {
                source: io::Error::from_raw_os_error(libc::EINVAL),
                message: Some(format!("a user EID has at most {LENGTH} characters")),
            });
        }
        let filled = format!("{ueid:LENGTH$}");
        let request = self.0.request(command).text(ENTRY, &filled);
        self.0.change(&request)
    }
}

/// Returns the user EIDs of the node. Returns none if the kernel has no EIDs (before Linux 5.16).
pub fn user_eids() -> Result<Vec<String>, NetlinkError> {
    Ok(ueids(&generic::dump_if_known(FAMILY, DUMP_UEID)?))
}

fn ueids(answers: &Answers) -> Vec<String> {
    answers.bodies().filter_map(parse).collect()
}

pub(super) fn parse(body: &[u8]) -> Option<String> {
    let value = attribute(generic::attributes_of(body), ENTRY)?;
    Some(text(value)?.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailing_blanks_are_cut_off() {
        let answer: &[&[u8]] = &[
            &[9, 1, 0, 0],
            &[37, 0, 1, 0],
            b"RDMA.CNI-1                      \0\0\0\0",
        ];
        assert_eq!(parse(&answer.concat()).as_deref(), Some("RDMA.CNI-1"));
        assert_eq!(parse(&[9, 1, 0, 0]), None);
    }
}
