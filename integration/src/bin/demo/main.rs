//! What `scripts/demo` shows, in two parts: devices that are moved into pods (the lab's full
//! tier, exclusive mode), and bonded NICs that pods share (shared mode).
//!
//! `demo moved`, `demo shared`; or `demo PCI PCI PCI PCI` on this machine: both rails of the
//! first pod, then both of the second.

mod moved;
mod shared;

use integration::{Attachment, Netns};
use std::{env, process};

const PODS: [&str; 2] = ["pod-a", "pod-b"];

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("moved") => moved::show(&[]),
        Some("shared") => shared::show(),
        Some(_) => moved::show(&arguments),
        None => stop("say what to show: moved, shared, or four PCI functions"),
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
