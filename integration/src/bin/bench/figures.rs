// SPDX-License-Identifier: Apache-2.0
//! Data of plots (`scripts/bench --plots`).

use std::{env, fmt::Write, fs, path::Path};

/// Writes a table for a plot if `RDMA_BENCH_FIGURES` names a directory. Each row has a name and numbers. `head` names
/// the columns.
pub(super) fn keep(table: &str, head: &[&str], rows: &[(String, Vec<f64>)]) {
    let Some(directory) = env::var_os("RDMA_BENCH_FIGURES") else {
        return;
    };
    let mut text = format!("\"\"\t\"{}\"\n", head.join("\"\t\""));
    for (name, numbers) in rows {
        let numbers: Vec<String> = numbers.iter().map(|it| format!("{it:.2}")).collect();
        writeln!(text, "\"{name}\"\t{}", numbers.join("\t")).expect("a string takes it");
    }
    let file = Path::new(&directory).join(table).with_extension("tsv");
    fs::write(file, text).expect("the table");
}
