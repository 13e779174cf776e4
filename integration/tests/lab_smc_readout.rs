// SPDX-License-Identifier: Apache-2.0
//! In the lab, `rdma-device-plugin smc`, compared with the real connections, and the kernel's treatment of a killed
//! process's connections: `integration/lab/vm --tier fast --exclusive`.

use integration::{
    Netns, extent,
    smc::{Client, Server, SmcPeer, Socket, active, read_out, shown},
    stopwatch::Stopwatch,
    wait,
};
use rdma_netns::{
    Kernel, Linux, NetnsSide, Op,
    linux::Space,
    smc::{HeldConnections, PnetEntry, PnetId, PnetTable, SmcState, UserEids},
};
use serde_json::Value;
use std::{
    process::Stdio,
    time::{Duration, Instant},
};

const UEID: &str = "RDMA.LAB-1";
const LIMIT: Duration = Duration::from_secs(240);
const MIB: u64 = 1 << 20;

/// Two pods, each with one end of a veth pair and an RDMA device on it. Pod 0 has `rail0`, `rxe0` and `10.9.0.1`; pod 1
/// has `rail1`, `rxe1` and `10.9.0.2`. Each pod has its own pnet id.
struct World {
    kernel: Linux,
    pods: [Netns; 2],
}

fn id(number: usize) -> PnetId {
    PnetId::try_from(format!("RAIL{number}")).expect("a pnet id")
}

impl World {
    fn new() -> Self {
        assert!(
            std::env::var_os("RDMA_LAB_TIER").is_some(),
            "this test runs in the lab, by integration/lab/vm --tier fast --exclusive"
        );
        let host = Netns::own();
        host.ip("link add rail0 type veth peer name rail1");
        let kernel = Linux::new();
        let pods = [0, 1].map(|number| {
            let pod = Netns::new(&format!("pod{number}"));
            let (netdev, rdma) = (format!("rail{number}"), format!("rxe{number}"));
            host.ip(&format!("link set dev {netdev} up"));
            host.run(&format!("rdma link add {rdma} type rxe netdev {netdev}"));
            host.run(&format!("rdma dev set {rdma} netns {}", pod.name()));
            host.ip(&format!("link set dev {netdev} netns {}", pod.name()));
            pod.ip("link set dev lo up");
            let addresses = [
                format!("10.9.0.{}/24", number + 1),
                format!("fd09::{}/64 nodad", number + 1),
            ];
            for address in addresses {
                pod.ip(&format!("address add {address} dev {netdev}"));
            }
            pod.ip(&format!("link set dev {netdev} up"));
            pod
        });
        let world = Self { kernel, pods };
        for number in [0, 1] {
            let entry = |netdev, rdma| PnetEntry {
                name: id(number),
                netdev,
                rdma,
            };
            let (netdev, rdma) = (format!("rail{number}"), format!("rxe{number}"));
            world.make(number, NetnsSide::Host, entry(None, Some((rdma, 1))));
            world.make(number, NetnsSide::Pod, entry(Some(netdev), None));
        }
        world.execute(0, Op::AddUeid { ueid: UEID.into() });
        world
    }

    fn make(&self, number: usize, at: NetnsSide, entry: PnetEntry) {
        self.execute(number, Op::AddPnet { at, entry });
    }

    fn execute(&self, number: usize, op: Op) {
        let made = self.kernel.execute(&op, Some(&self.space(number)));
        made.unwrap_or_else(|error| panic!("{error}"));
    }

    fn space(&self, number: usize) -> Space {
        let path = self.pods[number].path();
        self.kernel.open_pod(path).expect("the pod")
    }

    fn state(&self, number: usize) -> SmcState {
        let state = self.kernel.smc(Some(&self.space(number)));
        state.expect("a state").expect("a kernel with SMC")
    }

    /// Starts a server in pod 0, and a client in pod 1 with connections to it.
    fn connect(&self, sockets: [Socket; 2], address: &str, work: (usize, u64)) -> (Server, Client) {
        let peer = peer();
        let server = peer.serve(&self.pods[0], sockets[0], address);
        let client = peer.connect(&self.pods[1], sockets[1], server.address(), work, LIMIT);
        for connected in client.connected() {
            println!(
                "{sockets:?} to {address}: connected after {:?}",
                connected.took
            );
        }
        (server, client)
    }
}

fn peer() -> SmcPeer {
    SmcPeer(env!("CARGO_BIN_EXE_smc-peer").into())
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = PnetTable::open().and_then(|mut table| table.flush());
        let _ = UserEids::open().and_then(|mut ueids| ueids.remove(UEID));
    }
}

fn to_host(device: &str) -> Op {
    Op::MoveRdma {
        device: device.to_owned(),
        from: NetnsSide::Pod,
        to: NetnsSide::Host,
    }
}

#[test]
fn a_connection_over_rdma_is_shown_at_both_ends() {
    let world = World::new();
    let stopwatch = Stopwatch::start();
    let (server, client) = world.connect([Socket::Smc; 2], "10.9.0.1:7000", (3, 4 * MIB));
    for connected in client.connected() {
        let took = stopwatch.corrected(connected.took);
        assert!(took < Duration::from_secs(1), "{connected:?}");
    }
    for (number, role) in [(0, true), (1, false)] {
        let pod = &world.pods[number];
        let json = shown(pod);
        println!("{json:#}");
        println!("{}", read_out(&[pod.path().to_str().expect("UTF-8")]));
        let of_pod = serde_json::json!({"name": id(number), "netdev": format!("rail{number}")});
        assert_eq!(json["pnetEntries"][0], of_pod);
        assert_eq!(json["pnetEntries"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["userEids"], serde_json::json!([UEID]));
        let device = format!("rxe{number}");
        let ports = json["rdmaPorts"].as_array().expect("a list");
        let port = ports.iter().find(|port| port["device"] == device);
        assert_eq!(port.expect("its port")["pnetId"], *id(number));
        // the other end is in another pod on the same node, and is not shown
        let groups = json["linkGroups"].as_array().expect("a list");
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0]["isServer"], role);
        assert_eq!(
            (&groups[0]["version"], &groups[0]["connections"]),
            (&2.into(), &3.into())
        );
        assert_eq!(groups[0]["eid"], UEID);
        assert_eq!(groups[0]["links"][0]["device"], device);
        assert_eq!(groups[0]["links"][0]["state"], "active");
        let connections = active(pod);
        assert_eq!(connections.len(), 3);
        for connection in connections {
            assert_eq!(connection["mode"], "smcr");
            assert_eq!(connection["link"]["device"], device);
            assert_ne!(connection["inode"], 0);
        }
        let text = read_out(&[pod.name()]);
        let lines = text
            .lines()
            .filter(|line| line.contains("SMCR  rxe"))
            .count();
        assert_eq!(lines, 3, "{text}");
    }
    // the namespace of this program has no connection
    assert!(read_out(&[]).ends_with("Connections: none\n"));
    client.end();
    server.end();
    for pod in &world.pods {
        assert_eq!(active(pod), Vec::<Value>::new());
    }
}

#[test]
fn sockets_of_ipproto_smc_are_the_same() {
    let world = World::new();
    let (server, client) = world.connect([Socket::IpProtoSmc; 2], "10.9.0.1:7001", (2, MIB));
    for pod in &world.pods {
        let modes: Vec<Value> = active(pod)
            .into_iter()
            .map(|it| it["mode"].clone())
            .collect();
        assert_eq!(modes, ["smcr", "smcr"]);
    }
    client.end();
    server.end();
}

/// The reason why each connection is TCP, at the server and at the client, and the reason that the peer sent.
#[track_caller]
fn reasons(world: &World) -> [Vec<String>; 2] {
    [0, 1].map(|number| {
        let connections = active(&world.pods[number]).into_iter();
        let reasons = connections.map(|connection| {
            assert_eq!(connection["mode"], "tcp", "{connection}");
            let fallback = &connection["fallback"];
            let words = fallback["reason"]["words"].as_str().expect("words");
            match fallback["peer"]["words"].as_str() {
                Some(peer) => format!("{words}: {peer}"),
                None => words.to_owned(),
            }
        });
        reasons.collect()
    })
}

#[test]
fn a_connection_that_fell_back_reports_why() {
    let world = World::new();
    let cases = |sockets, address, server: &[&str], client: &[&str]| {
        let (serving, connected) = world.connect(sockets, address, (1, MIB));
        assert_eq!(
            reasons(&world),
            [server, client],
            "{sockets:?} to {address}"
        );
        let text = read_out(&[world.pods[0].name()]);
        assert!(
            server.iter().all(|words| text.contains(&words[..16])),
            "{text}"
        );
        connected.end();
        serving.end();
    };
    let both = [Socket::Smc; 2];
    let no_smc = "the peer did not offer SMC";
    // an end without SMC has no SMC socket to be shown
    cases([Socket::Smc, Socket::Tcp], "10.9.0.1:7000", &[no_smc], &[]);
    cases([Socket::Tcp, Socket::Smc], "10.9.0.1:7001", &[], &[no_smc]);
    let declined = "the peer declined: no SMC device for the connection";
    let nothing = "no SMC device for the connection";
    // IPv6 needs a GID of RoCE v1, which soft-RoCE does not have
    cases(both, "[fd09::1]:7002", &[declined], &[nothing]);
    // no RDMA port has the client's pnet id
    let at = NetnsSide::Pod;
    let entry = PnetEntry {
        name: id(7),
        netdev: Some("rail1".to_owned()),
        rdma: None,
    };
    world.execute(1, Op::RemovePnet { at, id: id(1) });
    world.make(1, at, entry);
    cases(both, "10.9.0.1:7003", &[declined], &[nothing]);
    world.execute(1, Op::RemovePnet { at, id: id(7) });
    // the server's RDMA device is not in its pod
    world.execute(0, to_host("rxe0"));
    let no_rdma = "no RDMA device for the connection";
    let declined_by_server = format!("the peer declined: {no_rdma}");
    cases(both, "10.9.0.1:7004", &[no_rdma], &[&declined_by_server]);
    // the server has no user EID
    world.execute(0, Op::RemoveUeid { ueid: UEID.into() });
    cases(both, "10.9.0.1:7005", &[declined], &[nothing]);
}

/// The kernel reports the connections that a process has open. `rdma-cni` reads this list before it moves a device,
/// because the move would wait in the kernel for such a connection. A killed process has no open connection, even if
/// its peer has not closed.
#[test]
fn connections_are_held_until_they_are_closed_or_their_process_ends() {
    let world = World::new();
    let server = peer().serve_and_hold(&world.pods[0], Socket::Smc, "10.9.0.1:7000");
    let (address, work) = (server.address(), (2, MIB));
    let client = peer().connect(&world.pods[1], Socket::Smc, address, work, LIMIT);
    let held = |device: &str| {
        vec![HeldConnections {
            device: device.to_owned(),
            count: 2,
        }]
    };
    assert_eq!(world.state(0).held, held("rxe0"));
    assert_eq!(world.state(1).held, held("rxe1"));
    let host = world.kernel.smc(None).expect("a state").expect("SMC");
    assert_eq!(host.held, []);
    client.kill();
    // the kernel reports no connection of the client, although the server has not closed its ends
    wait::until("the sockets are nobody's", || {
        world.state(1).held.is_empty()
    });
    assert_eq!(shown(&world.pods[1])["connections"], serde_json::json!([]));
    assert_eq!(world.state(0).held, held("rxe0"));
    let begin = Stopwatch::start();
    world.execute(1, to_host("rxe1"));
    println!("moved after {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(5));
    server.kill();
    wait::until("the sockets are nobody's", || {
        world.state(0).held.is_empty()
    });
    world.execute(0, to_host("rxe0"));
}

/// A connection that no process has accepted has no inode. A device move would wait for it without success: more than
/// 300 s in one trial, even after the end of the listener. The connection ends if the listener ends before the move.
#[test]
#[ignore = "scripts/test --full: the kernel's behaviour"]
fn a_connection_that_is_not_accepted_is_held_until_its_listener_ends() {
    let world = World::new();
    let server = peer().serve(&world.pods[0], Socket::Smc, "10.9.0.1:7000");
    Netns::own().run(&format!("kill -STOP {}", server.pid()));
    let mut client = world.pods[1].command(peer().0);
    client.args(["client", "--hold", "10.9.0.1:7000"]);
    let mut client = client
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("a client");
    let device = "rxe0".to_owned();
    let held = vec![HeldConnections { device, count: 1 }];
    wait::until("it is connected", || world.state(0).held == held);
    let connections = shown(&world.pods[0])["connections"].take();
    println!("{connections:#}");
    let connections = connections.as_array().expect("a list");
    // the list also contains the listener's own socket, which has no link
    let mut accepted_by_nobody = connections.iter().filter(|it| it["link"].is_object());
    assert_eq!(accepted_by_nobody.next().expect("one")["inode"], 0);
    server.kill();
    wait::until("it is gone", || world.state(0).held.is_empty());
    let begin = Instant::now();
    world.execute(0, to_host("rxe0"));
    println!("moved after {:?}", begin.elapsed());
    client.kill().expect("our own child");
    client.wait().expect("our own child");
}

#[test]
fn data_sent_is_data_received() {
    let world = World::new();
    let (begin, bytes) = (Instant::now(), extent::of(4 * MIB, 16 * MIB));
    let (server, client) = world.connect([Socket::Smc; 2], "10.9.0.1:7000", (4, bytes));
    let seconds = begin.elapsed().as_secs_f64();
    println!("4 times {bytes} bytes both ways in {seconds:.1} s");
    for pod in &world.pods {
        let connections = active(pod);
        assert_eq!(connections.len(), 4);
        assert!(connections.iter().all(|it| it["mode"] == "smcr"));
    }
    client.end();
    server.end();
}
