// SPDX-License-Identifier: Apache-2.0
//! What `scripts/demo` shows: a Kubernetes cluster in the lab; or, on a machine with an RDMA
//! stack of its own, devices that the chain moves into namespaces.
//!
//! `demo cluster`; or `demo PCI PCI PCI PCI`: both rails of the first pod, then both of the second.

mod cluster;
mod moved;

use integration::{Attachment, Netns};
use std::{env, process};

const PODS: [&str; 2] = ["pod-a", "pod-b"];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match <&[String; 4]>::try_from(&arguments[..]) {
        Ok(functions) => moved::show(functions),
        Err(_) if arguments == ["cluster"] => cluster::show(),
        Err(_) => stop("say what to show: cluster, or four PCI functions"),
    }
}

/// Ends before anything was changed.
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
