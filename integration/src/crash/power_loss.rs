// SPDX-License-Identifier: Apache-2.0
//! Power loss at each sync of a story, and at its end: unsynced data and all state of the kernel are lost.
//!
//! Only a sync makes changes of files durable. So the sweep kills a story before each sync, and after the last change.

use super::{
    attachment::{Attachments, OfVerb, Verb},
    story::{End, Story},
    sweep::{Tally, at_syncs},
};
use crate::{
    disk::{self, Disk},
    tracer::{Fault, Report},
};

/// Runs `story` with power losses. All its files are on `disk`.
#[track_caller]
pub fn loses_power(story: &mut dyn Story, disk: &Disk) -> Tally {
    disk::settle();
    at_syncs(&mut Powerless { story, disk }, &power_lost(disk))
}

/// Returns the name for the table. It differs from the name of the same story without power loss.
fn power_lost(disk: &Disk) -> String {
    format!("power lost on {}", disk.format.name())
}

/// A story that changes only files. After a power loss, the same calls restore the state as without a power loss.
struct Powerless<'a> {
    story: &'a mut dyn Story,
    disk: &'a Disk,
}

impl Story for Powerless<'_> {
    fn name(&self) -> &'static str {
        self.story.name()
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        let ended = self.story.run(fault);
        self.disk.lose_power();
        ended
    }

    fn put_right(&mut self, end: &End, turn: usize) -> Vec<String> {
        let left = self.story.put_right(end, turn);
        // syncs: the next run starts from this state
        disk::settle();
        left
    }

    fn start_anew(&mut self) {
        self.story.start_anew();
        disk::settle();
    }
}

/// ADD, DEL or GC of `rdma-cni`. Afterward the node loses power and boots: the netdevs are on the host, and the pods
/// have ended.
#[derive(Debug)]
pub struct Boots<'a> {
    /// Name for reports.
    pub name: &'static str,
    /// The verb.
    pub verb: Verb,
    /// The node.
    pub of: Attachments,
    /// Disk that loses power with the node.
    pub disk: &'a Disk,
}

impl Story for Boots<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        disk::settle();
        let (name, verb) = (self.name, self.verb);
        let of = &mut self.of;
        let ended = OfVerb { name, verb, of }.run(fault);
        self.disk.lose_power();
        ended
    }

    /// A record that DEL removed may exist again. The next call recognizes that the record's pod is of an earlier boot.
    fn put_right(&mut self, _: &End, turn: usize) -> Vec<String> {
        self.of.boot();
        let left = self.of.restore(turn, false);
        self.of.start_anew();
        left
    }

    fn start_anew(&mut self) {
        self.of.start_anew();
    }
}

/// Runs the story with power losses.
#[track_caller]
pub fn boots(mut story: Boots<'_>) -> Tally {
    let what = power_lost(story.disk);
    at_syncs(&mut story, &what)
}
