// SPDX-License-Identifier: Apache-2.0
//! `routing`: metrics and tables of the rails' routes in the pod.

use cni_protocol::{ConfError, Fields};
use serde::{Deserialize, Serialize};

/// `routing`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Routing {
    /// `metric`: that of connected and IPAM routes, unless others to the same destination have
    /// a higher one.
    pub metric: u32,
    /// `tableBase`: the table of rail 0, where there are several rails; 0: no tables.
    pub table_base: u32,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            metric: 200,
            table_base: 1000,
        }
    }
}

/// As many tables as there can be rails.
const MOST_RAILS: u32 = 1000;

/// `RT_TABLE_LOCAL`, the highest of the kernel's own (`include/uapi/linux/rtnetlink.h`).
const LOCAL_TABLE: u32 = 255;

impl Routing {
    /// What was done before there was `routing`.
    pub fn without_tables() -> Self {
        Self {
            metric: 0,
            table_base: 0,
        }
    }

    pub(super) fn parse(fields: Fields<'_>) -> Result<Self, ConfError> {
        let routing = fields.object("routing")?;
        let default = Self::default();
        // room above for those that have to stand back
        let metric = routing.number("metric", 0, i32::MAX as u32)?;
        let table_base = routing.number("tableBase", 0, u32::MAX - MOST_RAILS)?;
        let table_base = table_base.unwrap_or(default.table_base);
        if (1..=LOCAL_TABLE).contains(&table_base) {
            let expected = "must be 0 (no tables), or more than 255: the kernel has tables of its \
                            own below that";
            return Err(routing.wrong("tableBase", expected));
        }
        Ok(Self {
            metric: metric.unwrap_or(default.metric),
            table_base,
        })
    }
}
