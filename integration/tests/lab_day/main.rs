// SPDX-License-Identifier: Apache-2.0
//! A compressed day in the lab: `scripts/test --full lab day`, on `integration/lab/vm --tier full --exclusive --memory
//! 2560 --monitor`. Every round has the events of a node's day, in another order each time. One pod has functions
//! during the events, other pods start and end between them. After each round the node must be in its first state.
//!
//! | module | owns |
//! |---|---|
//! | `node` | the node, its pods, and its state at rest |
//! | `happenings` | the events |
//! | `traces` | counts of possible leftovers |

mod happenings;
mod node;
mod traces;

use happenings::Happening;
use integration::extent;
use node::Day;
use traces::{DaemonSize, Traces};

/// Number of rounds from one kill of the daemon to the next. The first round has a kill.
const DAEMONS_LIFE: usize = 4;

#[test]
fn a_day_leaves_nothing() {
    let rounds = extent::of(3, 8);
    let mut day = Day::begin();
    let fresh = Traces::of(&day);
    let mut early = None;
    let mut daemon_early: Option<DaemonSize> = None;
    for round in 0..rounds {
        let is_killed = round % DAEMONS_LIFE == 0;
        day.round = round;
        let mut lives = day.long_lived();
        for happening in Happening::in_the_order_of(round, is_killed) {
            lives = happening.happens(&mut day, lives);
            day.a_pod_comes_and_goes(&lives);
        }
        day.remove(lives.pod);
        day.rests();
        Traces::held(&day);
        let now = Traces::until_as(&day, &fresh, early.as_ref());
        day.report(&format!("{now}"));
        early.get_or_insert(now);
        if is_killed {
            daemon_early = None;
        } else {
            let now = DaemonSize::until_as(&day, daemon_early.as_ref());
            day.report(&format!("{now:?}"));
            daemon_early.get_or_insert(now);
        }
    }
    day.ends();
}
