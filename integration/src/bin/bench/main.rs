//! Size and speed beside the peers that Debian has, in one run: what counts is the ratio.

mod chain;
mod leases;
mod run;

use integration::Node;
use nix::sched::{CloneFlags, setns};
use std::fs::File;

fn main() {
    let node = Node::with_rails(1);
    // children start in the host's namespace, without `ip netns exec` in the measurement
    let host = File::open(node.host.path()).expect("the host's namespace");
    setns(&host, CloneFlags::CLONE_NEWNET).expect("root may enter it");
    chain::measure(&node);
    leases::measure(&node);
}
