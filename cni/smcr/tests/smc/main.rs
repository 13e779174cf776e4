// SPDX-License-Identifier: Apache-2.0
//! SMC-R's plans as data. Each file in `cases` is a base of `bases` with differences (see the crate `cases`). The text
//! file of the same name has the expected plan.
//!
//! | member | content |
//! |---|---|
//! | `mode` | mode of the RDMA subsystem |
//! | `rails` | rails, which [`world`] completes: `name`, `home` or `shared`, `mac`, `rdma`, `port`, `driver` |
//! | `absent` | true if the RDMA devices are not in the pod |
//! | `pod`, `host` | netdevs and their addresses; `kind`; `master` and `lower` are indices, which begin at 20 in pod and host |
//! | `seen` | observed state of SMC |
//! | `gids` | GIDs of each rail's port, in order: `[kind, address, netdev]`; missing: the rails are not yet in the pod |
//! | `primary`, `ueid` | the pod's primary interface, and `smcUeid` |
//! | `others` | other records: their `smc`, their `addresses`, and their `pod` (`"same"`: the pod of the case) |
//! | `unreadable` | true if there are unreadable records |
//! | `smc`, `dead` | for a removal: the SMC-R of the record, and true if the pod has ended |
//!
//! `UPDATE_PLANS=1 cargo test -p smcr --test smc` rewrites all expected plans. Read them before you commit.

mod world;

use attachments::PlacedEntry;
use plan::drift;
use rdma_netns::Op;
use smcr::decision::{self, Others};
use std::{fmt::Write as _, path::Path};
use world::World;

#[test]
fn plans_are_as_written() {
    let cases = cases::list(env!("CARGO_MANIFEST_DIR"), "tests/smc/cases");
    assert!(cases.len() >= 20, "{cases:?}");
    cases::assert_as_written(&cases, plan_of);
}

fn plan_of(case: &Path) -> String {
    let world = World::read(case);
    match world.attachment.smc.is_some() {
        true => taken_away(&world),
        false => set_up(&world),
    }
}

fn set_up(world: &World) -> String {
    let World {
        attachment,
        observed,
        seen,
        ..
    } = world;
    for required in [false, true] {
        if let Some(blocker) = decision::blocker(attachment, observed, Some(seen), required) {
            return format!("# hindered, required {required}: {blocker}\n");
        }
    }
    let chosen = decision::choose(world.input());
    let mut text = String::new();
    for (name, reason) in &chosen.without {
        let _ = writeln!(text, "# {name} goes without: {reason}");
    }
    for carried in &chosen.smc.interfaces {
        let _ = writeln!(
            text,
            "# {} by {} port {}",
            carried.interface, carried.rdma_device, carried.port
        );
    }
    let ops = decision::attach(&chosen.smc, seen);
    text += &lines(&ops);
    text += "# is missing without it:\n";
    for op in &ops {
        let _ = writeln!(text, "# {}", drift::describe(op, observed));
    }
    // other attachments have already added the record's other entries
    let count = |text: &str| text.matches("smc_pnet -a").count();
    let _ = writeln!(
        text,
        "# of {} entries {} are new",
        chosen.smc.entries.len(),
        count(&text)
    );
    text
}

fn taken_away(world: &World) -> String {
    let World {
        attachment,
        seen,
        others,
        dead,
        unreadable,
        ..
    } = world;
    let others = Others {
        records: others,
        unreadable: *unreadable,
    };
    let mut text = lines(&decision::detach(attachment, others, seen, !dead));
    for PlacedEntry { at, entry } in decision::returning(attachment, others, seen, !dead) {
        let of = entry.netdev.or(entry.rdma.map(|it| it.0));
        let of = of.unwrap_or_default();
        let _ = writeln!(text, "# comes back: {} of {of} ({at:?})", entry.name);
    }
    if text.is_empty() {
        text.push_str("# nothing\n");
    }
    text
}

fn lines(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("{op}\n")).collect()
}
