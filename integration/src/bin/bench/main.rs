// SPDX-License-Identifier: Apache-2.0
//! Measures the plugins together with Debian's plugins for the same work, and prints ratios. Parts without such
//! plugins, such as the daemon, are measured alone. Arguments name the parts to run. Without arguments all parts except
//! `lab` run.

mod by_rails;
mod claims;
mod crowd;
mod daemon;
mod figures;
mod floor;
mod lab;
mod leases;
mod machines;
mod moves;
mod passing;
mod peers;
mod present;
mod profile;
mod rails;
mod run;
mod together;
mod waits;

use integration::Node;
use nix::sched::{CloneFlags, setns};
use std::{env, fs::File, process};

/// Measures on a node, and prints the figures.
type Measure = fn(&Node);

const PARTS: [(&str, Measure); 10] = [
    ("rails", rails::measure),
    ("moves", moves::measure),
    ("crowd", crowd::measure),
    ("present", present::measure),
    ("floor", floor::measure),
    ("profile", profile::measure),
    ("leases", leases::measure),
    ("passing", passing::measure),
    ("daemon", |_| daemon::measure()),
    ("claims", |_| claims::measure()),
];

fn main() {
    let only: Vec<String> = env::args().skip(1).collect();
    if only == ["lab"] {
        return lab::measure();
    }
    let unknown = only
        .iter()
        .find(|it| PARTS.iter().all(|(name, _)| name != it));
    if let Some(unknown) = unknown {
        let names = PARTS.map(|(name, _)| name).join(", ");
        eprintln!(
            "bench: there is no part {unknown:?}; the parts are {names}; and lab, alone, in the lab's VM"
        );
        process::exit(2);
    }
    let node = Node::with_rails(1);
    // child processes inherit the host's namespace, so the measured time includes no `ip netns exec`
    let host = File::open(node.host.path()).expect("the host's namespace");
    setns(&host, CloneFlags::CLONE_NEWNET).expect("root may enter it");
    for (name, measure) in PARTS {
        if only.is_empty() || only.iter().any(|it| it == name) {
            measure(&node);
        }
    }
}
