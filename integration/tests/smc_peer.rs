// SPDX-License-Identifier: Apache-2.0
//! `smc-peer`, the program of the lab's SMC tests, with plain TCP on any kernel.

use integration::{
    Netns,
    smc::{SmcPeer, Socket},
    stopwatch::Stopwatch,
    wait::TIMEOUT,
};
use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

const LIMIT: Duration = TIMEOUT;

fn peer() -> SmcPeer {
    SmcPeer(env!("CARGO_BIN_EXE_smc-peer").into())
}

#[test]
fn all_bytes_of_all_connections_go_both_ways() {
    let netns = Netns::new("peer");
    netns.ip("link set lo up");
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let server = peer().serve(&netns, Socket::Tcp, address);
        let work = (3, 5_000_001);
        let stopwatch = Stopwatch::start();
        let client = peer().connect(&netns, Socket::Tcp, server.address(), work, LIMIT);
        let connected = client.connected();
        assert_eq!(connected.len(), 3);
        let open = netns.run("ss -Hnt state established");
        for connection in connected {
            assert!(open.contains(&connection.local.to_string()), "{open}");
            assert!(stopwatch.corrected(connection.took) < Duration::from_secs(1));
        }
        client.end();
        server.end();
    }
}

/// The data are wrong from byte 8 on: a server must report it.
#[test]
fn a_wrong_byte_is_reported_with_its_place() {
    let netns = Netns::own();
    let server = peer().serve(&netns, Socket::Tcp, "127.0.0.1:0");
    let mut client = TcpStream::connect(server.address()).expect("connected");
    let word = |number: u64| number.to_le_bytes();
    client.write_all(&word(0)).expect("sent");
    client.write_all(&word(100_000)).expect("sent");
    client.write_all(&word(0)).expect("sent");
    client.write_all(&[0; 100_000 - 8]).expect("sent");
    let mut answers = vec![];
    let _ = client.read_to_end(&mut answers);
    let failed = std::panic::catch_unwind(move || server.end());
    let message = failed.expect_err("the server fails");
    let message = message.downcast_ref::<String>().expect("a message");
    assert!(message.contains("byte 8 is not what was sent"), "{message}");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for words in [
        &[][..],
        &["server"],
        &["server", "10.0.0.1"],
        &["peer", "10.0.0.1:1"],
    ] {
        let status = Command::new(env!("CARGO_BIN_EXE_smc-peer"))
            .args(words)
            .status();
        assert_eq!(status.expect("it runs").code(), Some(2), "{words:?}");
    }
}
