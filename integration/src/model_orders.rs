// SPDX-License-Identifier: Apache-2.0
//! Orders for the model of the lab's PCI functions, sent from inside the VM (`integration/lab/vm --tier mlx5`, or
//! `--tier erdma --monitor`). `integration/hardware/README.md` lists the orders.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
};

/// Port that is connected with the model's socket for orders.
const PORT: &str = "/dev/vport0p4";

/// The open port. The kernel lets only one process at a time open it.
#[derive(Debug)]
pub struct ModelOrders {
    orders: File,
    answers: BufReader<File>,
}

impl ModelOrders {
    /// Opens the port.
    #[track_caller]
    pub fn open() -> Self {
        let orders = File::options().read(true).write(true).open(PORT);
        let orders = orders.unwrap_or_else(|error| {
            panic!("{PORT}: {error}: this test needs integration/lab/vm --tier mlx5, or --tier erdma --monitor")
        });
        let answers = BufReader::new(orders.try_clone().expect("a second handle"));
        Self { orders, answers }
    }

    /// Executes an order. Returns the answer without its final line break.
    #[track_caller]
    pub fn execute(&mut self, order: &str) -> String {
        let written = self.orders.write_all(format!("{order}\n").as_bytes());
        written.expect("the model takes orders");
        let end = if order == "status" { "\n\n" } else { "\n" };
        let mut answer = String::new();
        while !answer.ends_with(end) {
            let read = self.answers.read_line(&mut answer).expect("an answer");
            assert_ne!(read, 0, "{order}: the answer ends early: {answer:?}");
        }
        answer.trim_end().to_owned()
    }
}
