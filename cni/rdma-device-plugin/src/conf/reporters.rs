// SPDX-License-Identifier: Apache-2.0
//! `reporters`, beside the resources in any format: the health reporters of devlink that decide about a NIC's health.
//! `docs/device-plugin-conf.md` describes it.
//!
//! Most reporters are not suitable. Devlink also sets a reporter to the state `error` when it skips a recovery within
//! the grace period after the last one (`net/devlink/health.c`), as after two timeouts of a transmit queue. The
//! reporters `tx` and `rx` are about queues that RDMA does not use.

use super::errors::is_name;
use conf_reader::{Field, Wrong};
use serde::Deserialize;

/// Name of the field.
pub(super) const FIELD: &str = "reporters";

/// Reporters of a NIC's firmware.
const DEFAULT: [&str; 2] = ["fw", "fw_fatal"];

/// Name of a reporter.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match is_name(&name) {
            true => Ok(Self(name)),
            false => Err(format!(
                "must be the name of a reporter in devlink health show, as fw_fatal, and is {name:?}"
            )),
        }
    }
}

/// Returns the reporters that judge without the field.
pub(super) fn default() -> Vec<String> {
    DEFAULT.map(str::to_owned).into()
}

/// Returns the reporters that judge by the field.
pub(super) fn read(file: &Field<'_>) -> Result<Vec<String>, Wrong> {
    let names: Option<Vec<Name>> = file.get(FIELD)?;
    let names = names.map(|names| names.into_iter().map(|it| it.0).collect());
    Ok(names.unwrap_or_else(default))
}
