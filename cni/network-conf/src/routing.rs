// SPDX-License-Identifier: Apache-2.0
//! Field `routing`: metrics and tables of the rails' routes in the pod.

use conf_reader::{Field, Number, Wrong};
use serde::{Deserialize, Serialize};

/// Value of `routing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Routing {
    /// `metric`: the metric of connected routes and of routes from IPAM. A route gets a higher metric if another route
    /// to the same destination has this metric or a higher one.
    pub metric: u32,
    /// `tableBase`: number of the first rail's routing table. If it is 0, neither rails nor other interfaces of the pod
    /// get tables.
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

/// The fields of a `routing` object. Missing fields get their values from a more general configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoutingFields {
    /// `metric`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// `tableBase`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table_base: Option<u32>,
}

/// Number of tables above `tableBase` that rails may need.
const MOST_RAILS: u32 = 1000;

/// Number of `RT_TABLE_LOCAL`, the highest table that the kernel itself uses (`include/uapi/linux/rtnetlink.h`).
const LOCAL_TABLE: u32 = 255;

impl RoutingFields {
    /// Reads `routing` of `file`.
    ///
    /// # Errors
    /// A value is wrong.
    pub fn parse(file: &Field<'_>) -> Result<Self, Wrong> {
        let routing = file.object("routing")?;
        // metrics above the limit are reserved for routes that need a higher metric than an existing route
        let metric: Option<Number<0, { i32::MAX as u32 }>> = routing.get("metric")?;
        let table_base: Option<Number<0, { u32::MAX - MOST_RAILS }>> = routing.get("tableBase")?;
        let table_base = table_base.map(|it| it.0);
        if table_base.is_some_and(|it| (1..=LOCAL_TABLE).contains(&it)) {
            return Err(routing.at("tableBase").wrong(
                "must be 0 (no tables) or more than 255, because the kernel uses the tables up to 255",
            ));
        }
        Ok(Self {
            metric: metric.map(|it| it.0),
            table_base,
        })
    }

    /// Returns true if no field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these fields. `other` provides missing fields.
    pub fn over(self, other: Routing) -> Routing {
        Routing {
            metric: self.metric.unwrap_or(other.metric),
            table_base: self.table_base.unwrap_or(other.table_base),
        }
    }
}
