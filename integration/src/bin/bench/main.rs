// SPDX-License-Identifier: Apache-2.0
//! Speed beside the peers that Debian has, in one run: what counts is the ratio. And the
//! daemon's figures, which have none beside them. Arguments name the parts that are wanted.

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

/// Prints what it measures on a node.
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
            "bench: there is no {unknown:?}; there are {names}; and lab, alone, in the lab's VM"
        );
        process::exit(2);
    }
    let node = Node::with_rails(1);
    // children start in the host's namespace, without `ip netns exec` in the measurement
    let host = File::open(node.host.path()).expect("the host's namespace");
    setns(&host, CloneFlags::CLONE_NEWNET).expect("root may enter it");
    for (name, measure) in PARTS {
        if only.is_empty() || only.iter().any(|it| it == name) {
            measure(&node);
        }
    }
}
