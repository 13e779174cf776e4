// SPDX-License-Identifier: Apache-2.0
//! `lldp`, beside the resources of any format. `docs/device-plugin-conf.md` describes its fields.

use conf_reader::{Field, Wrong};
use serde::Deserialize;
use std::path::PathBuf;

/// Name of the field.
pub(super) const FIELD: &str = "lldp";

/// The section as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    listen: Option<bool>,
    file: Option<PathBuf>,
}

/// Source from which the daemon knows the NICs' switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lldp {
    /// Frames that the NICs receive.
    Listen,
    /// File with the output of `lldpcli -f json0 show neighbors` or `-f json`.
    File(PathBuf),
}

/// Checks the `section` of the whole `file`, in any format.
pub(super) fn read(file: &Field<'_>) -> Result<Option<Lldp>, Wrong> {
    let Some(section) = file.get::<Section>(FIELD)? else {
        return Ok(None);
    };
    let field = file.at(FIELD);
    match (section.listen, section.file) {
        (Some(true), None) => Ok(Some(Lldp::Listen)),
        (Some(false), None) => Ok(None),
        (None | Some(false), Some(path)) if path.is_absolute() => Ok(Some(Lldp::File(path))),
        (None | Some(false), Some(_)) => Err(field.at("file").wrong("must be an absolute path")),
        (Some(true), Some(_)) => Err(field.refused(
            "has listen and file; choose one, because an agent that writes the file already receives all frames",
        )),
        (None, None) => Err(field.wrong("must have listen or file")),
    }
}
