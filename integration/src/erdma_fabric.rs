// SPDX-License-Identifier: Apache-2.0
//! The fabric of the lab's eRDMA functions. A test in the VM sends orders to the fabric
//! (`integration/lab/vm --tier erdma --monitor`).

use crate::model_orders::ModelOrders;

/// The fabric. Drop clears all faults.
#[derive(Debug)]
pub struct ErdmaFabric(ModelOrders);

impl ErdmaFabric {
    /// Opens the machine's only fabric. Only one test at a time can use it.
    #[track_caller]
    pub fn new() -> Self {
        Self(ModelOrders::open())
    }

    /// Executes an order.
    #[track_caller]
    pub fn order(&mut self, line: &str) {
        assert_eq!(self.0.execute(line), "ok", "{line}");
    }
}

impl Default for ErdmaFabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ErdmaFabric {
    fn drop(&mut self) {
        for line in [
            "link all up",
            "loss all 0",
            "delay all 0",
            "no-answer 10000",
            "plug all",
        ] {
            self.order(line);
        }
    }
}
