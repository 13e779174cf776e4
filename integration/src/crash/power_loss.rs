// SPDX-License-Identifier: Apache-2.0
//! Loss of power at each sync of a story: unsynced data and all state of the kernel are lost.
//!
//! Only a sync changes a disk for certain. So the sweep kills a story before each sync, and at its end.

use super::{
    End, Story, Tally, at_syncs,
    attachment::{Attachments, OfVerb, Verb},
};
use crate::{
    disk::{self, Disk},
    tracer::{Fault, Report},
};

/// Tells `story`, all of whose files are on `disk`.
#[track_caller]
pub fn loses_power(story: &mut dyn Story, disk: &Disk) -> Tally {
    disk::settle();
    at_syncs(&mut Powerless { story, disk }, &power_lost(disk))
}

/// Returns the name for the table: the stories without a loss of power have the same names.
fn power_lost(disk: &Disk) -> String {
    format!("power lost on {}", disk.format.name())
}

/// A story of files alone: what puts it right is the same as without a loss of power.
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
        // the next run is another one
        disk::settle();
        left
    }

    fn start_anew(&mut self) {
        self.story.start_anew();
        disk::settle();
    }
}

/// ADD, DEL or GC of `rdma-cni`, whose node boots after it: with its netdevs, and without its pods.
#[derive(Debug)]
pub struct Boots<'a> {
    /// Name for readers.
    pub name: &'static str,
    /// Verb.
    pub verb: Verb,
    /// Node.
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

    /// Expects that a record removed by DEL may exist again: its pod is of another boot, which the next call
    /// recognizes.
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

/// Tells it.
#[track_caller]
pub fn boots(mut story: Boots<'_>) -> Tally {
    let what = power_lost(story.disk);
    at_syncs(&mut story, &what)
}
