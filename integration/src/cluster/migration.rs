// SPDX-License-Identifier: Apache-2.0
//! A node's migration from another plugin: an operator types the commands of `docs/drop-in.md`, "One node at a time".

use super::Cluster;
use crate::{control_plane::nodes::NODE, daemon::rdma_device_plugin, pages};

/// The page with the commands.
pub const PAGE: &str = "docs/drop-in.md";

/// The migration from one plugin.
#[derive(Debug)]
pub struct Migration {
    /// Name of the plugin's DaemonSet.
    pub name: String,
    namespace: String,
    values: String,
    /// True if the chart's values have `enableNonHostNetwork`.
    has_chain: bool,
}

impl Migration {
    /// Reads the plugin's row of the page's table. `has_chain` is true if the row's values have `enableNonHostNetwork`.
    #[track_caller]
    pub fn new(plugin: &str, has_chain: bool) -> Self {
        let rows = pages::rows(PAGE, "| from | NAMESPACE | NAME | VALUES |");
        let row = rows.into_iter().find(|it| it[0] == plugin);
        let row = row.unwrap_or_else(|| panic!("{PAGE} has no row of {plugin}"));
        let [_, namespace, name, values] = <[String; 4]>::try_from(row).expect("four cells");
        Self {
            name,
            namespace,
            values,
            has_chain,
        }
    }

    /// Types the commands below `heading`. Returns their output.
    #[track_caller]
    pub fn types<N>(&self, cluster: &Cluster<N>, heading: &str) -> String {
        let mut output = String::new();
        let blocks = pages::shell(PAGE, heading);
        for line in blocks.iter().flat_map(|it| &it.lines) {
            output += &match line.strip_prefix("rdma-device-plugin ") {
                // the page says: only with enableNonHostNetwork
                Some(_) if !self.has_chain => continue,
                Some(rest) => cluster.types(&format!("{} {rest}", rdma_device_plugin().display())),
                None => cluster.types(&self.filled_in(line)),
            };
        }
        output
    }

    fn filled_in(&self, line: &str) -> String {
        let line = line
            .replace("NAMESPACE", &self.namespace)
            .replace("VALUES", &self.values);
        line.replace("NAME", &self.name).replace("NODE", NODE)
    }
}
