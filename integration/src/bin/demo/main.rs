// SPDX-License-Identifier: Apache-2.0
//! The demonstration of `scripts/demo`. It shows a Kubernetes cluster in the lab. On a machine with its own RDMA
//! stack, it shows devices that the chain moves into namespaces.
//!
//! Arguments: `cluster`; or `PCI PCI PCI PCI`, which are the first pod's two functions and then the second pod's; or
//! `host`, which chooses four free functions.

mod choice;
mod cluster;
mod moved;

use integration::{Attachment, Netns};
use rdma_netns::{Kernel, Linux};
use std::{env, process};

const PODS: [&str; 2] = ["pod-a", "pod-b"];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match <&[String; 4]>::try_from(&arguments[..]) {
        Ok(functions) => moved::show(functions),
        Err(_) if arguments == ["cluster"] => cluster::show(),
        Err(_) if arguments == ["host"] => moved::show(&free_functions()),
        Err(_) => stop("give one argument, cluster or host, or four PCI functions"),
    }
}

/// Chooses four free functions of this host, and prints them.
fn free_functions() -> [String; 4] {
    let observed = Linux::new().observe(None);
    let observed = observed.unwrap_or_else(|error| stop(&error.to_string()));
    let chosen = choice::choose(&observed).unwrap_or_else(|why| stop(&why.to_string()));
    heading("Four free functions of this host");
    for (index, function) in chosen.iter().enumerate() {
        println!(
            "{}, rail {}: {} ({}, {})",
            PODS[index / 2],
            index % 2,
            function.pci,
            function.netdev,
            function.rdma
        );
    }
    chosen.map(|function| function.pci.to_string())
}

/// Ends the program, which has changed nothing yet.
fn stop(reason: &str) -> ! {
    eprintln!("demo: {reason}");
    process::exit(2)
}

fn attachment(index: usize, pod: &Netns) -> Attachment {
    Attachment::new(&format!("sandbox-{index}"), pod.path(), "eth0").of_pod("default", PODS[index])
}

fn heading(text: &str) {
    println!("\n== {text}\n");
}

fn print(text: &str) {
    println!("{}\n", text.trim_end());
}
