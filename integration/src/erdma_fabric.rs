// SPDX-License-Identifier: Apache-2.0
//! The fabric of the lab's eRDMA functions, which takes orders from inside the VM (`integration/lab/vm --tier erdma
//! --monitor`). `integration/hardware/README.md` lists the orders.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
};

/// The port that leads to the model's socket of orders.
const PORT: &str = "/dev/vport0p4";

/// The fabric. On drop it has no fault.
#[derive(Debug)]
pub struct ErdmaFabric {
    orders: File,
    answers: BufReader<File>,
}

impl ErdmaFabric {
    /// A machine has one, for one test at a time.
    #[track_caller]
    pub fn new() -> Self {
        let orders = File::options().read(true).write(true).open(PORT);
        let orders = orders.unwrap_or_else(|error| {
            panic!("{PORT}: {error}: this test needs integration/lab/vm --tier erdma --monitor")
        });
        let answers = BufReader::new(orders.try_clone().expect("a second handle"));
        Self { orders, answers }
    }

    /// Executes an order.
    #[track_caller]
    pub fn order(&mut self, line: &str) {
        let written = self.orders.write_all(format!("{line}\n").as_bytes());
        written.expect("the model takes orders");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("an answer");
        assert_eq!(answer, "ok\n", "{line}");
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
