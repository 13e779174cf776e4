// SPDX-License-Identifier: Apache-2.0
//! In the lab, the stories of `crash` with SMC-R and with RDMA devices that belong to one namespace:
//! `integration/lab/vm --tier full --exclusive`, one test at a time.

use integration::{
    Netns,
    crash::{
        Extent,
        attachment::{Attachments, OfVerb, Verb},
        kills_and_errors,
        twice::{error_and_kill, two_kills},
    },
    lab::Lab,
    plugin,
    smc::pods::{UEID, make_bridge},
};
use serde_json::json;

/// One rail with SMC-R and an RDMA device that moves.
#[test]
#[ignore = "scripts/test --full: kills are lab_exclusive's and lab_smc_exclusive's"]
fn devices_that_move_and_smc_r_leave_nothing() {
    let lab = Lab::new(2);
    lab.give_addresses();
    // SMC-Rv2 uses a GID of a netdev with an address in the network of the connection
    let netdev = &lab.rails(0)[0].netdev;
    lab.host.ip(&format!(
        "address add 10.88.1.1/16 dev {netdev} noprefixroute"
    ));
    make_bridge(&lab.runtime(), &lab.state().with_file_name("leases"));
    let mut configuration = lab.configuration(0);
    configuration["smcr"] = "on".into();
    configuration["smcUeid"] = UEID.into();
    configuration["name"] = "net".into();
    configuration["cniVersion"] = "1.1.0".into();
    // one rail tests the same as two, and is faster
    configuration["devices"] = json!([configuration["devices"][0]]);
    let programs = [
        plugin::rdma_cni(),
        env!("CARGO_BIN_EXE_fault-injector").into(),
    ];
    let mut of = Attachments::new(
        Netns::own(),
        programs,
        plugin::DEBIAN_PLUGINS.into(),
        configuration,
        vec![lab.state()],
    );
    // a run with a kill takes some seconds in the lab; a run with an error takes longer, because the program also stops
    // at calls that change nothing
    for (name, verb, errors) in [
        ("lab: ADD", Verb::Add, 20),
        ("lab: DEL", Verb::Del, 16),
        ("lab: GC", Verb::Gc, 12),
    ] {
        let of = &mut of;
        let story = &mut OfVerb { name, verb, of };
        let tally = kills_and_errors(story, Extent::ALL, Extent::spread(1, errors));
        tally.assert_nothing_left(10);
    }
    let ends = [Verb::Del, Verb::Gc];
    let seconds = [Verb::Del, Verb::Gc, Verb::Add];
    for tally in [
        two_kills(
            "lab: twice",
            &mut of,
            [&[Verb::Add], &seconds],
            Extent::spread(1, 24),
        ),
        two_kills(
            "lab: ends, twice",
            &mut of,
            [&ends, &ends],
            Extent::spread(1, 8),
        ),
        error_and_kill("lab: both", &mut of, Verb::Add, Extent::spread(3, 6)),
    ] {
        tally.assert_nothing_left(10);
    }
}
