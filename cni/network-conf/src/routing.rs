// SPDX-License-Identifier: Apache-2.0
//! `routing`: metrics and tables of the rails' routes in the pod.

use conf_reader::{Field, Number, Wrong};
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

    pub(super) fn parse(file: &Field<'_>) -> Result<Self, Wrong> {
        let routing = file.object("routing")?;
        let default = Self::default();
        // room above for those that have to stand back
        let metric: Option<Number<0, { i32::MAX as u32 }>> = routing.get("metric")?;
        let table_base: Option<Number<0, { u32::MAX - MOST_RAILS }>> = routing.get("tableBase")?;
        let table_base = table_base.map_or(default.table_base, |it| it.0);
        if (1..=LOCAL_TABLE).contains(&table_base) {
            return Err(routing.at("tableBase").wrong(
                "must be 0 (no tables), or more than 255: the kernel has tables of its own below that",
            ));
        }
        Ok(Self {
            metric: metric.map_or(default.metric, |it| it.0),
            table_base,
        })
    }
}
