// SPDX-License-Identifier: Apache-2.0
//! Section `lldp`, which a configuration file of any format can have. `docs/device-plugin-conf.md`
//! describes its fields.

use conf_reader::{Field, Wrong};
use serde::Deserialize;
use std::path::PathBuf;

pub(super) const FIELD: &str = "lldp";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    listen: Option<bool>,
    file: Option<PathBuf>,
}

/// Source from which the daemon learns the NICs' switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lldp {
    /// LLDP frames that the NICs receive.
    Listen,
    /// File with the output of `lldpcli -f json0 show neighbors` or `-f json`.
    File(PathBuf),
}

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
            "has listen: true and file; remove one of the two, because the daemon learns the switches from only \
             one source",
        )),
        (None, None) => Err(field.wrong("must have listen or file")),
    }
}
