// SPDX-License-Identifier: Apache-2.0
//! The stories of `crash` in which a pod shares a bonded NIC with an RDMA device, and gets its addresses from
//! `rdma-ipam`.

use super::{gids_are, nothing_is_left, of_one_rail};
use integration::{
    Bonded, Netns,
    crash::{
        Extent,
        attachment::{Attachments, OfVerb, Verb},
        kills_and_errors,
    },
    plugin,
    rails::{BONDS, Side},
};

#[test]
#[ignore = "scripts/test --full: kills are killed_after_any_operation's"]
fn a_share_with_an_rdma_device_leaves_nothing() {
    let bonded = Bonded::new();
    let gids = BONDS.map(|bond| bonded.gids(bond));
    let programs = [
        plugin::rdma_cni(),
        env!("CARGO_BIN_EXE_fault-injector").into(),
    ];
    let mut of = Attachments::new(
        Netns::own(),
        programs,
        bonded.cni_path(),
        of_one_rail(&bonded),
        vec![bonded.state(Side::A), bonded.leases(Side::A)],
    );
    // few faults, because each run takes some seconds in the lab: the program also stops at calls that change nothing
    for (name, verb, kills, errors) in [
        ("lab share: ADD", Verb::Add, 16, 12),
        ("lab share: DEL", Verb::Del, 10, 8),
        ("lab share: GC", Verb::Gc, 8, 6),
    ] {
        let of = &mut of;
        let story = &mut OfVerb { name, verb, of };
        let tally = kills_and_errors(story, Extent::spread(1, kills), Extent::spread(1, errors));
        tally.assert_nothing_left(5);
        gids_are(&bonded, gids);
        nothing_is_left(&bonded, Side::A);
    }
}
