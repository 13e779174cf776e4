// SPDX-License-Identifier: Apache-2.0
//! In the lab, `rdma-device-plugin ping` between pods on a ConnectX card: `integration/lab/vm --tier mlx5`. Driver and
//! kernel are real, the card is a model.

use integration::{
    mlx5_card::{ADDRESSES, MACS, Mlx5Card, NETDEVS, RDMA, configuration},
    pinged::pinged,
    wait,
};
use serde_json::Value;

#[test]
#[ignore = "scripts/test --full: lab_ping shows all by soft-RoCE"]
fn pods_ping_each_other_and_report_a_peer_without_its_link() {
    let card = Mlx5Card::new("exclusive");
    let node = card.node();
    let pods = ["one", "two"].map(|label| node.pod(label));
    for function in 0..2 {
        let configuration = configuration(&node, NETDEVS[function]);
        node.add(&configuration, &format!("c{function}"), &pods[function]);
        card.has_state(&pods[function], RDMA[function], "ACTIVE");
    }
    for (own, other) in [(0, 1), (1, 0)] {
        let mut result = (1, Value::Null);
        // the driver has just made both devices again
        wait::within(wait::TIMEOUT, || {
            result = pinged(&pods[own], ADDRESSES[other], "10");
            result.0 == 0
        });
        let (code, pair) = result;
        assert_eq!((code, &pair["answered"]), (0, &2.into()), "{pair}");
        assert_eq!(pair["from"]["device"], RDMA[own], "{pair}");
    }
    assert_eq!(card.order(&format!("link {} down", MACS[1])), "ok");
    card.has_state(&pods[1], RDMA[1], "DOWN");
    let (code, pair) = pinged(&pods[0], ADDRESSES[1], "3");
    assert_eq!((code, &pair["answered"]), (1, &0.into()), "{pair}");
    let reason = pair["reason"].as_str().unwrap_or_default();
    let icmp =
        "the address does not answer ICMP either: check the peer, the cable and the switch port";
    assert!(reason.ends_with(icmp), "{reason}");
    assert_eq!(card.order("link all up"), "ok");
    let answers = || pinged(&pods[0], ADDRESSES[1], "10").0 == 0;
    wait::until("the peer answers again", answers);
    for function in 0..2 {
        let configuration = configuration(&node, NETDEVS[function]);
        node.del(&configuration, &format!("c{function}"), &pods[function]);
    }
}
