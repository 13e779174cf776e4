// SPDX-License-Identifier: Apache-2.0
//! Section `reporters`: the health reporters of devlink whose state `error` makes a NIC unhealthy. A configuration file
//! of any format can have this section. `docs/device-plugin-conf.md` describes it.
//!
//! Most reporters are not suitable. For a grace period after a recovery, devlink attempts no further recovery, and an
//! error in this period leaves the reporter in state `error` (`net/devlink/health.c`). Two timeouts of a transmit queue
//! are enough for this state. The reporters `tx` and `rx` report on queues that RDMA does not use.

use crate::errors::is_name;
use conf_reader::{Field, Wrong};

pub(super) const FIELD: &str = "reporters";

/// Default: the reporters of a NIC's firmware.
const DEFAULT: [&str; 2] = ["fw", "fw_fatal"];

/// Returns the reporters that apply to a file without this section.
pub(super) fn default() -> Vec<String> {
    DEFAULT.map(str::to_owned).into()
}

pub(super) fn read(file: &Field<'_>) -> Result<Vec<String>, Wrong> {
    let field = file.at(FIELD);
    if !field.is_there() {
        return Ok(default());
    }
    let checked = |element: Field<'_>| {
        let name: String = element.read()?;
        match is_name(&name) {
            true => Ok(name),
            false => Err(element.refused(format!(
                "must be the name of a reporter in devlink health show, as fw_fatal, and is {name:?}"
            ))),
        }
    };
    field.list()?.into_iter().map(checked).collect()
}
