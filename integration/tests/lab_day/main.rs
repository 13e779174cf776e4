// SPDX-License-Identifier: Apache-2.0
//! A day in the lab, compressed: `scripts/test --full lab day`, on `integration/lab/vm --tier full --exclusive
//! --memory 2560 --monitor`. What happens to a node in a day happens to it in every round, in another order each time,
//! with pods that live through it and pods that come and go. After each round the node is as it was.
//!
//! | module | owns |
//! |---|---|
//! | `node` | the node, its pods, and its rest |
//! | `happenings` | what happens to it |
//! | `traces` | what could be left of that, counted |

mod happenings;
mod node;
mod traces;

use happenings::Happening;
use integration::extent;
use node::Day;
use traces::{DaemonSize, Traces};

/// In every so many rounds, from the first on, the daemon is killed; it lives through those between.
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
        day.says(&format!("{now}"));
        early.get_or_insert(now);
        if is_killed {
            daemon_early = None;
        } else {
            let now = DaemonSize::until_as(&day, daemon_early.as_ref());
            day.says(&format!("{now:?}"));
            daemon_early.get_or_insert(now);
        }
    }
    day.ends();
}
