// SPDX-License-Identifier: Apache-2.0
//! In the lab, pods of two machines with ConnectX cards on one switch: `integration/lab/pair --tier mlx5`, one test at
//! a time. Both machines run this program. Driver, kernel and user-space provider are real, the cards and the switch
//! are models.

use integration::{
    Netns, Node, Snapshot,
    mlx5_card::{Mlx5Card, NETDEVS, RDMA, configuration, links, sent, shared_configuration},
    pair::Pair,
    pinged::pinged,
    traffic::{self, End},
    wait,
};
use serde_json::Value;

/// The addresses of the functions of machine 1, and those of machine 2.
const ADDRESSES: [[&str; 2]; 2] = [["10.0.0.1", "10.0.0.2"], ["10.0.0.3", "10.0.0.4"]];
/// The addresses of the machines' bonds.
const BONDS: [&str; 2] = ["fd00:b0::1/64", "fd00:b0::2/64"];

/// Returns the GID index in ADD's result.
#[track_caller]
fn gid_index(result: &Value) -> u64 {
    let index = result["rails"][0]["gidIndex"].as_u64();
    index.unwrap_or_else(|| panic!("{result}"))
}

/// Asserts that `peer` answers `rdma-device-plugin ping` from `pod`.
#[track_caller]
fn ping(pod: &Netns, peer: &str, rdma: &str) {
    let mut result = (1, Value::Null);
    // the driver of either machine may have just made its device again
    wait::within(wait::TIMEOUT, || {
        result = pinged(pod, peer, "10");
        result.0 == 0
    });
    let (code, pair) = result;
    assert_eq!((code, &pair["answered"]), (0, &2.into()), "{pair}");
    assert_eq!(pair["from"]["device"], rdma, "{pair}");
}

/// Runs both ends of a program, by `serve` and `ask`. Asserts that the port of each machine in `senders` sends at least
/// `least` bytes. `netns` is the namespace of the device.
#[track_caller]
fn passes(
    pair: &Pair,
    program: &str,
    (senders, least): (&[usize], u64),
    (netns, rdma): (&Netns, &str),
    serve: impl FnOnce() -> traffic::Serving,
    ask: impl FnOnce(),
) {
    let earlier = sent(netns, rdma);
    pair.run(program, serve, ask);
    let bytes = sent(netns, rdma) - earlier;
    println!("{program}: machine {} sent {bytes} bytes", pair.number);
    if senders.contains(&pair.number) {
        assert!(bytes >= least, "{program}: {bytes} bytes");
    }
}

/// A pod of machine 1 has the first function of its card. A pod of machine 2 has the second function of its card.
#[test]
fn pods_with_functions_of_two_machines_exchange_data() {
    let pair = Pair::new("functions");
    let function = pair.number - 1;
    let own = ADDRESSES[function];
    let (rdma, server) = (RDMA[function], ADDRESSES[1][1]);
    let peer = [server, ADDRESSES[0][0]][function];
    let card = Mlx5Card::new("exclusive");
    let node = card.node_with(own);
    let before = Snapshot::of(&node.host);
    let pod = node.pod("pod");
    let configuration = configuration(&node, NETDEVS[function]);
    let result = node.add(&configuration, "c", &pod);
    let address = own[function];
    assert_eq!(pod.addresses("rdma0"), [format!("{address}/24")]);
    card.has_state(&pod, rdma, "ACTIVE");
    let (pod, rdma) = (&pod, rdma);
    let end = End { pod, rdma, address };
    pair.meet("pods");
    ping(pod, peer, rdma);

    pair.run(
        "rping",
        || traffic::serve_rping(end),
        || traffic::ask_rping(end, server),
    );
    // in a read, the server sends the data
    for (program, senders, least) in [
        ("ib_read_bw -q 30", [2], 30 * 100 * 4096),
        ("ib_write_bw", [1], 100 * 4096),
        ("ib_send_bw", [1], 100 * 4096),
    ] {
        passes(
            &pair,
            program,
            (&senders, least),
            (pod, rdma),
            || traffic::serve_by_connection_manager(program, end),
            || {
                traffic::ask_by_connection_manager(program, end, server);
            },
        );
    }
    let index = gid_index(&result);
    passes(
        &pair,
        "ibv_ud_pingpong",
        (&[1, 2], 100 * 1024),
        (pod, rdma),
        || traffic::serve_pingpong("ibv_ud_pingpong", end, index),
        || traffic::ask_pingpong("ibv_ud_pingpong", end, index, server),
    );
    for transport in ["rc_x", "ud_x"] {
        passes(
            &pair,
            transport,
            (&[1], 100 * 4096),
            (pod, rdma),
            || traffic::serve_ucx(transport, end),
            || traffic::ask_ucx(transport, end, server),
        );
    }

    node.del(&configuration, "c", pod);
    assert_eq!(links(&node.host).len(), 2);
    node.assert_restored(&before);
    pair.meet("end");
}

/// Each machine has a bond of both functions, and a pod with a child of the bond. All addresses are IPv6 addresses.
#[test]
fn pods_with_children_of_bonds_of_two_machines_exchange_data() {
    let pair = Pair::new("bonds");
    let rdma = "mlx5_bond_0";
    let card = Mlx5Card::new("shared");
    let node = Node::on(Netns::own());
    card.bond("802.3ad", BONDS[pair.number - 1]);
    let before = Snapshot::of(&node.host);
    let mut configuration = shared_configuration(&node, "bond0");
    configuration["ipam"]["family"] = "ipv6".into();
    let pod = node.pod("pod");
    node.add(&configuration, "c", &pod);
    let addresses = pod.addresses("rdma0");
    let address = addresses[0].split('/').next().unwrap_or_default();
    assert!(address.starts_with("fd00:b0:"), "{addresses:?}");
    let pod = &pod;
    let end = End { pod, rdma, address };
    let peer = pair.exchange("pods", address);
    ping(pod, &peer, rdma);

    passes(
        &pair,
        "rping",
        (&[1, 2], 64),
        (&node.host, rdma),
        || traffic::serve_rping(end),
        || traffic::ask_rping(end, &peer),
    );

    node.del(&configuration, "c", pod);
    node.assert_restored(&before);
    // neither machine removes its bond before both pods have ended
    pair.meet("end");
    card.unbond();
    assert_eq!(links(&node.host).len(), 2);
}
