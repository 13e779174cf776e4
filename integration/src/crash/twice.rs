// SPDX-License-Identifier: Apache-2.0
//! Two faults in one story: an ADD that is killed, and what comes after it killed too; then DEL.

use super::attachment::{Attachments, Verb};
use super::{Extent, Tally, must_succeed};
use crate::{Invocation, tracer::Fault};

/// What comes after the ADD that was killed.
const SECONDS: [&str; 3] = ["DEL", "GC", "another pod's ADD"];

/// Kills ADD before its changes, and each time DEL, GC or another pod's ADD in turn before one of its own; `extent`
/// says how many of all pairs. `name` is for people.
#[track_caller]
pub fn twice(name: &str, of: &mut Attachments, extent: Extent) -> Tally {
    let counts = [Verb::Add, Verb::Del, Verb::Gc].map(|verb| changes(of, verb));
    let mut tally = Tally {
        name: name.to_owned(),
        ..Tally::default()
    };
    let seconds = [counts[1], counts[2], counts[0]];
    let mut pairs = vec![];
    for first in 1..=counts[0] {
        for (second, count) in seconds.into_iter().enumerate() {
            pairs.extend((1..=count).map(|at| (first, second, at)));
        }
    }
    tally.all = pairs.len();
    for (first, second, at) in extent.of(pairs) {
        of.clear();
        of.traced(of.call("ADD", 0), Some(Fault::Kill(first)));
        let (_, report) = of.traced(after(of, second), Some(Fault::Kill(at)));
        tally.killed += 1;
        tally.unmet += usize::from(report.hit.is_none());
        let mut left = must_succeed("DEL", &of.call("DEL", 0).run());
        if second == 2 {
            left.extend(must_succeed("DEL of the other", &of.call("DEL", 1).run()));
        }
        left.extend(of.differences(&[0, 1]));
        if !left.is_empty() {
            let what = SECONDS[second];
            let line =
                format!("{name}: ADD killed before change {first}, {what} before {at}: {left:#?}");
            eprintln!("{line}");
            tally.left.push(line);
            of.start_anew();
        }
    }
    tally.tell();
    tally
}

fn after(of: &Attachments, second: usize) -> Invocation<'_> {
    match second {
        0 => of.call("DEL", 0),
        1 => of.gc(),
        _ => of.call("ADD", 1),
    }
}

/// How many changes a verb makes.
#[track_caller]
fn changes(of: &Attachments, verb: Verb) -> usize {
    of.clear();
    if verb != Verb::Add {
        of.call("ADD", 0).run().result();
    }
    let call = match verb {
        Verb::Add => of.call("ADD", 0),
        Verb::Del => of.call("DEL", 0),
        Verb::Gc => of.gc(),
    };
    let (_, report) = of.traced(call, None);
    of.call("DEL", 0).run().silent();
    report.changes().count()
}
