// SPDX-License-Identifier: Apache-2.0
//! Tests bring-up and release of eRDMA NICs on the real kernel, in temporary network namespaces. veths replace the
//! NICs.

mod mortal;

use erdma::{
    Nic,
    bring_up::{BringUp, Outcome, State, release},
    conf,
    metadata::Pace,
};
use integration::{MetadataService, Netns, Snapshot, wait};
use mortal::Mortal;
use rdma_netns::{Kernel, Linux};
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tempfile::TempDir;

/// A host with three veths in one network: `eth0` has an address and a default route, and `eth1` and `eth2` are down
/// and have no address.
struct Host {
    netns: Netns,
    /// Namespace with the other ends of the veths, which must exist as long as the host.
    switch: Netns,
    kernel: Arc<Linux>,
    state: TempDir,
    service: MetadataService,
}

const CIDR: &str = "10.0.0.0/24";
const GATEWAY: &str = "10.0.0.253";
const MACS: [&str; 2] = ["02:00:00:00:0e:01", "02:00:00:00:0e:02"];

impl Host {
    fn new(metric: &str) -> Self {
        let (netns, switch) = (Netns::new("erdma"), Netns::new("vswitch"));
        switch.ip("link add br0 type bridge");
        switch.ip("link set br0 up");
        switch.ip(&format!("address add {GATEWAY}/24 dev br0"));
        netns.ip("link set lo up");
        for number in 0..3 {
            let mac = match number {
                0 => "02:00:00:00:0e:10",
                _ => MACS[number - 1],
            };
            let name = switch.name();
            netns.ip(&format!(
                "link add eth{number} address {mac} type veth peer name p{number} netns {name}"
            ));
            switch.ip(&format!("link set p{number} master br0 up"));
        }
        netns.ip("link set eth0 up");
        netns.ip(&format!("address add 10.0.0.5/24 dev eth0 {metric}"));
        netns.ip(&format!(
            "route add default via {GATEWAY} dev eth0 {metric}"
        ));
        for netdev in ["eth1", "eth2"] {
            netns.set_sysctl(&format!("ipv4/conf/{netdev}/rp_filter"), "1");
        }
        let opened = rdma_netns::netns::Netns::open(netns.path()).expect("the namespace");
        let kernel = opened.run(|| {
            let kernel = Linux::new();
            // the kernel interface belongs to the namespace in which it is first used
            kernel.observe(None).expect("the host's state");
            kernel
        });
        let service = MetadataService::new();
        for (mac, ip) in MACS.into_iter().zip(["10.0.0.6", "10.0.0.7"]) {
            service.add_nic(mac, ip, CIDR, GATEWAY);
        }
        Self {
            netns,
            switch,
            kernel: Arc::new(kernel.expect("a way in")),
            state: tempfile::tempdir().expect("a directory"),
            service,
        }
    }

    /// Settles the NICs with a new `BringUp`, as after the daemon's restart. Repeats this while a NIC waits, and
    /// asserts that the repetitions change nothing.
    async fn settle(&self) -> Vec<Outcome> {
        let conf = conf::BringUp {
            mtu: 8500,
            metadata: self.service.base(),
            addresses: vec![],
        };
        let pace = Pace {
            pause: Duration::from_millis(10),
            quiet: Duration::ZERO,
            ..Pace::default()
        };
        let bring_up = BringUp::with_pace(conf, self.state.path(), self.kernel.clone(), pace);
        let mut bring_up = bring_up.expect("an address");
        let nics: Vec<Nic> = (1..3)
            .map(|number| Nic {
                rdma: format!("erdma_{}", number - 1),
                address: format!("0000:00:0{number}.0")
                    .try_into()
                    .expect("an address"),
                netdev: Some(format!("eth{number}")),
                mac: Some(MACS[number - 1].parse().expect("a hardware address")),
            })
            .collect();
        let mut outcomes = bring_up.settle(&nics).await;
        // a veth gets its carrier a moment after it is set up
        for _ in 0..3000 {
            let is_waiting = |it: &Outcome| matches!(it.state, State::Waiting { .. });
            if !outcomes.iter().any(is_waiting) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            let done = std::mem::take(&mut outcomes);
            outcomes = bring_up.settle(&nics).await;
            assert_eq!(changes(&outcomes), [0, 0], "after {done:?}");
        }
        outcomes
    }

    /// Returns the routes of a netdev: destination, gateway, source and metric.
    fn routes(&self, netdev: &str) -> Vec<String> {
        let routes = self.netns.show(&format!("-4 route show dev {netdev}"));
        let word = |route: &Value, key: &str| match &route[key] {
            Value::Null => "-".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let fields =
            |route: &Value| ["dst", "gateway", "prefsrc", "metric"].map(|key| word(route, key));
        routes.iter().map(|route| fields(route).join(" ")).collect()
    }

    /// Returns the netdev by which a packet leaves. `rest` is the destination, with further
    /// arguments of `ip route get`.
    fn leaves_by(&self, rest: &str) -> String {
        let routes = self.netns.show(&format!("-4 route get {rest}"));
        routes[0]["dev"].as_str().expect("a netdev").to_owned()
    }

    fn release(&self) -> Vec<String> {
        let released = release(&*self.kernel, self.state.path()).expect("records");
        released.iter().map(ToString::to_string).collect()
    }
}

/// Returns the number of changes of each NIC. Any other outcome fails the test.
#[track_caller]
fn changes(outcomes: &[Outcome]) -> Vec<usize> {
    let of = |outcome: &Outcome| match outcome.state {
        State::Configured { changes, .. } => changes,
        _ => panic!("{outcome}"),
    };
    outcomes.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn nics_are_brought_up_behind_the_default_route_and_put_back() {
    let host = Host::new("");
    let before = Snapshot::of(&host.netns);
    let outcomes = host.settle().await;
    let words: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "erdma_0: eth1 has 10.0.0.6/24",
            "erdma_1: eth2 has 10.0.0.7/24"
        ]
    );
    for (netdev, ip, metric) in [("eth1", "10.0.0.6", 200), ("eth2", "10.0.0.7", 201)] {
        assert_eq!(host.netns.addresses(netdev), [format!("{ip}/24")]);
        let wanted = [
            format!("default {GATEWAY} {ip} {metric}"),
            format!("{CIDR} - {ip} {metric}"),
        ];
        assert_eq!(host.routes(netdev), wanted);
        assert_eq!(host.netns.link(netdev).expect("it")["mtu"], 8500);
        assert_eq!(
            host.netns.sysctl(&format!("ipv4/conf/{netdev}/rp_filter")),
            "2"
        );
    }
    // the node's own traffic keeps its route, and a socket that is bound to a NIC uses this NIC
    assert_eq!(host.leaves_by("8.8.8.8"), "eth0");
    assert_eq!(host.leaves_by("10.0.0.9"), "eth0");
    assert_eq!(host.leaves_by("8.8.8.8 oif eth2"), "eth2");
    assert_eq!(host.leaves_by("10.0.0.9 oif eth1"), "eth1");
    host.netns.run(&format!("ping -c 1 -W 2 -I eth1 {GATEWAY}"));
    // `switch` has a neighbour entry for the NIC, like the cloud's vSwitch. `switch` reaches the NIC's address,
    // although the host's route back uses another NIC. With strict reverse path filtering on the NIC, the address is
    // unreachable
    host.switch.ip(&format!(
        "neigh replace 10.0.0.7 lladdr {} dev br0",
        MACS[1]
    ));
    let is_reached = || {
        let mut ping = host.switch.command("ping");
        let done = ping.args(["-c", "1", "-W", "1", "10.0.0.7"]).output();
        done.expect("ping is installed").status.success()
    };
    assert!(is_reached());
    host.netns.set_sysctl("ipv4/conf/eth2/rp_filter", "1");
    assert!(!is_reached());
    host.netns.set_sysctl("ipv4/conf/eth2/rp_filter", "2");

    let configured = Snapshot::of(&host.netns);
    host.service
        .behave(|behaviour| behaviour.status = Some(500));
    assert_eq!(changes(&host.settle().await), [0, 0]);
    configured.assert_restored(&host.netns);

    let expected = ["eth1: released, 6 changes", "eth2: released, 6 changes"];
    assert_eq!(host.release(), expected);
    before.assert_restored(&host.netns);
    assert_eq!(host.release(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flap_is_mended_with_the_same_metrics() {
    // the metric that systemd-networkd sets
    let host = Host::new("metric 1024");
    host.settle().await;
    let configured = Snapshot::of(&host.netns);
    let wanted = [
        format!("default {GATEWAY} 10.0.0.6 1025"),
        format!("{CIDR} - 10.0.0.6 1025"),
    ];
    assert_eq!(host.routes("eth1"), wanted);
    host.netns.ip("link set eth1 down");
    host.netns.ip("link set eth1 up");
    wait::until("the carrier is back", || {
        host.netns
            .link("eth1")
            .is_some_and(|link| link["operstate"] == "UP")
    });
    assert_eq!(host.routes("eth1"), [""; 0]);
    assert_eq!(changes(&host.settle().await), [2, 0]);
    configured.assert_restored(&host.netns);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_comes_with_a_higher_metric_later_stays_in_front() {
    let host = Host::new("");
    host.settle().await;
    host.netns.ip("address flush dev eth0");
    host.netns
        .ip("address add 10.0.0.5/24 dev eth0 metric 1024");
    host.netns.ip(&format!(
        "route add default via {GATEWAY} dev eth0 metric 1024"
    ));
    assert_ne!(host.leaves_by("8.8.8.8"), "eth0");
    assert_eq!(changes(&host.settle().await), [4, 4]);
    assert_eq!(host.leaves_by("8.8.8.8"), "eth0");
    let metrics = ["eth1", "eth2"].map(|netdev| host.routes(netdev)[0].clone());
    let wanted = ["10.0.0.6 1025", "10.0.0.7 1026"];
    for (route, wanted) in metrics.iter().zip(wanted) {
        assert!(route.ends_with(wanted), "{route}");
    }
    assert_eq!(changes(&host.settle().await), [0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_of_others_in_the_same_network_outlast_the_release() {
    let host = Host::new("");
    host.settle().await;
    host.netns.ip("address add 10.0.0.66/24 dev eth1");
    host.netns
        .ip("route add 10.7.0.0/16 dev eth1 src 10.0.0.66");
    let released = host.release();
    assert!(
        released[0].contains("10.0.0.66/24, which another program added later: not removed"),
        "{released:?}"
    );
    assert_eq!(host.netns.addresses("eth1"), ["10.0.0.66/24"]);
    assert!(
        host.routes("eth1")
            .contains(&"10.7.0.0/16 - 10.0.0.66 -".to_owned())
    );
    assert_eq!(host.netns.link("eth2").expect("eth2")["operstate"], "DOWN");
}

/// With the last IPv4 address of a netdev, the kernel removes all IPv4 routes of the netdev.
#[tokio::test(flavor = "multi_thread")]
async fn routes_of_others_outlast_another_address_and_the_release() {
    for (address, cidr, gateway) in [
        ("10.0.0.8", CIDR, GATEWAY),
        ("10.1.0.8", "10.1.0.0/24", "10.1.0.253"),
    ] {
        let host = Host::new("");
        host.settle().await;
        host.netns.ip("route add 10.7.0.0/16 dev eth1");
        host.netns
            .ip("route add 10.8.0.0/16 via 10.7.0.1 dev eth1 table 77");
        let table = || host.netns.ip("-4 route show dev eth1 table 77");
        let before = table();
        host.service.add_nic(MACS[0], address, cidr, gateway);
        host.settle().await;
        assert_eq!(host.netns.addresses("eth1"), [format!("{address}/24")]);
        let foreign = "10.7.0.0/16 - - -".to_owned();
        assert!(host.routes("eth1").contains(&foreign));
        assert_eq!(table(), before);
        let released = host.release();
        assert!(
            released[0]
                .contains("eth1 has a route to 10.7.0.0/16, which another program added later"),
            "{released:?}"
        );
        assert_eq!(host.routes("eth1"), [foreign]);
        assert_eq!(table(), before);
    }
}

/// The kernel deletes the address and the routes of another program with the daemon's address. The process is killed
/// after each change of the first NIC.
#[tokio::test(flavor = "multi_thread")]
async fn configuration_of_others_outlasts_a_killed_release() {
    let routes = [
        "10.7.0.0/16 dev eth1",
        "10.8.0.0/16 via 10.7.0.1 dev eth1 table 77",
        "10.9.0.0/16 dev eth1 src 10.0.0.66 metric 7",
        "10.10.0.0/16 via 10.0.0.1 dev eth1 src 10.0.0.66 mtu 1400",
    ];
    for at in 0.. {
        let host = Host::new("");
        host.settle().await;
        host.netns
            .set_sysctl("ipv4/conf/eth1/promote_secondaries", "0");
        host.netns.ip("address add 10.0.0.66/24 dev eth1");
        for route in routes {
            host.netns.ip(&format!("route add {route}"));
        }
        let others = || {
            let mut lines = host.netns.ip("-4 route show dev eth1 table all");
            lines += &host.netns.addresses("eth1").join("\n");
            let is_others =
                |line: &&str| !line.contains("10.0.0.6 ") && !line.contains("10.0.0.6/24");
            let lines = lines.lines().filter(is_others);
            let mut lines: Vec<String> = lines
                .filter(|it| !it.contains("proto kernel"))
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        let before = others();
        assert_eq!(before.len(), 5, "{before:?}");
        let is_killed = Mortal::dies(&host.kernel, at, |kernel| {
            drop(release(kernel, host.state.path()));
        });
        assert!(is_killed);
        if !host.state.path().join("erdma/0000:00:01.0.json").exists() {
            assert!(at >= 10, "{at}");
            break;
        }
        // the next process is a daemon or a release
        if at % 2 == 1 {
            host.settle().await;
            assert_eq!(others(), before, "started after {at} changes");
        }
        host.release();
        assert_eq!(others(), before, "released after {at} changes");
        assert_eq!(host.netns.addresses("eth1"), ["10.0.0.66/24"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_configuration_is_left_alone() {
    let host = Host::new("");
    host.netns.ip("address add 10.0.0.6/24 dev eth1");
    host.netns.ip("link add br1 type bridge");
    host.netns.ip("link set eth2 master br1");
    let before = Snapshot::of(&host.netns);
    let messages: Vec<String> = host
        .settle()
        .await
        .iter()
        .map(ToString::to_string)
        .collect();
    let wanted = [
        "erdma_0: left alone: eth1 has 10.0.0.6/24 already",
        "erdma_1: left alone: eth2 is a port of br1",
    ];
    assert_eq!(messages, wanted);
    before.assert_restored(&host.netns);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_route_and_a_flushed_address_are_restored() {
    let host = Host::new("");
    let outcomes = host.settle().await;
    for outcome in &outcomes {
        assert_eq!(outcome.retry_after(), Some(Duration::from_secs(30)));
    }
    let configured = Snapshot::of(&host.netns);
    host.netns.ip("route del default dev eth1");
    assert_eq!(changes(&host.settle().await), [1, 0]);
    configured.assert_restored(&host.netns);
    host.netns.ip("route flush dev eth2");
    host.netns.ip("-4 address flush dev eth1");
    assert_eq!(changes(&host.settle().await), [3, 2]);
    configured.assert_restored(&host.netns);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nic_below_another_netdev_or_with_a_route_is_left_alone_and_stays_up() {
    let host = Host::new("");
    host.netns.ip("link set eth1 up");
    host.netns
        .ip("link add macvlan1 link eth1 type macvlan mode bridge");
    host.netns.ip("link set eth2 up");
    host.netns.ip("route add 10.7.0.0/16 dev eth2");
    let before = Snapshot::of(&host.netns);
    let outcomes = host.settle().await;
    let messages: Vec<String> = outcomes.iter().map(ToString::to_string).collect();
    let wanted = [
        "erdma_0: left alone: macvlan1 uses eth1 as its lower device",
        "erdma_1: left alone: eth2 has a route to 10.7.0.0/16 already",
    ];
    assert_eq!(messages, wanted);
    before.assert_restored(&host.netns);

    // another program configures a netdev on top of a NIC that the daemon configured
    host.netns.ip("link del macvlan1");
    host.netns.ip("route del 10.7.0.0/16 dev eth2");
    assert_eq!(changes(&host.settle().await), [5, 5]);
    host.netns
        .ip("link add macvlan1 link eth1 type macvlan mode bridge");
    assert_eq!(changes(&host.settle().await), [0, 0]);
    let released = host.release();
    assert!(
        released[0].contains("macvlan1 uses eth1 now: eth1 stays up and keeps its MTU"),
        "{released:?}"
    );
    let eth1 = host.netns.link("eth1").expect("eth1");
    assert_eq!(
        (&eth1["operstate"], &eth1["mtu"]),
        (&"UP".into(), &8500.into())
    );
    assert_eq!(host.netns.addresses("eth1"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_netdev_that_is_made_anew_gets_it_all_again() {
    let host = Host::new("");
    host.settle().await;
    let configured = Snapshot::of(&host.netns);
    host.netns.ip("link del eth2");
    host.netns.ip(&format!(
        "link add eth2 address {} type veth peer name p2 netns {}",
        MACS[1],
        host.switch.name()
    ));
    host.switch.ip("link set p2 master br0 up");
    host.netns.set_sysctl("ipv4/conf/eth2/rp_filter", "1");
    assert_eq!(changes(&host.settle().await), [0, 6]);
    configured.assert_restored(&host.netns);
}
