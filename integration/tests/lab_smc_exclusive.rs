// SPDX-License-Identifier: Apache-2.0
//! In the lab, SMC-R of pods with exclusive RDMA devices: `integration/lab/vm --tier full --exclusive`, one test at a
//! time.

use integration::{
    Snapshot,
    killed::{Around, Restorer, Sweep},
    lab::{Lab, ipv4},
    plugin,
    smc::{
        SmcPeer,
        pods::{PRIMARY, SmcPod, UEID, bridge, exchange, make_bridge},
        shown,
    },
    wait,
};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;

/// A node whose primary network is a bridge, with two virtual functions for each of two pods.
struct Scene {
    lab: Lab,
    before: Snapshot,
}

impl Scene {
    fn new() -> Self {
        let lab = Lab::new(2);
        lab.give_addresses();
        // SMC-Rv2 uses a GID of a netdev with an address in the network of the connection
        for number in 0..2 {
            let netdev = &lab.rails(number)[0].netdev;
            let address = format!("10.88.1.{}/16", number + 1);
            lab.host
                .ip(&format!("address add {address} dev {netdev} noprefixroute"));
        }
        make_bridge(&lab.runtime(), &leases(&lab));
        let before = Snapshot::of(&lab.host);
        Self { lab, before }
    }

    fn configuration(&self, number: usize, smcr: &str) -> Value {
        let mut plugin = self.lab.configuration(number);
        plugin["smcr"] = smcr.into();
        plugin["smcUeid"] = UEID.into();
        plugin
    }

    /// A pod with both rails of `number` and this annotation.
    #[track_caller]
    fn pod(&self, number: usize, annotation: &str) -> SmcPod {
        let plugins = [
            bridge(&leases(&self.lab)),
            self.configuration(number, "annotation"),
        ];
        let pod = SmcPod::new(["one", "two"][number], plugins, Some(annotation));
        pod.add(&self.lab.runtime());
        pod
    }

    /// Two pods whose annotation requests SMC-R.
    #[track_caller]
    fn two_annotated(&self) -> [SmcPod; 2] {
        [0, 1].map(|number| self.pod(number, "true"))
    }

    /// Runs DEL of both pods. Asserts that the host is as before.
    #[track_caller]
    fn end(&self, pods: &[SmcPod]) {
        for pod in pods {
            pod.del(&self.lab.runtime());
        }
        self.before.assert_restored(&self.lab.host);
    }
}

fn leases(lab: &Lab) -> std::path::PathBuf {
    lab.state().with_file_name("leases")
}

fn peer() -> SmcPeer {
    SmcPeer(env!("CARGO_BIN_EXE_smc-peer").into())
}

#[test]
fn annotated_pods_have_smc_r_and_nothing_is_left_when_their_namespaces_die() {
    let scene = Scene::new();
    let pods = scene.two_annotated();
    for pod in &pods {
        pod.check(&scene.lab.runtime());
    }
    let of_first = [
        (pods[0].ipv4(PRIMARY), (2, MIB)),
        (ipv4(0, 0), (4, 4 * MIB)),
        (ipv4(1, 0), (2, MIB)),
    ];
    for (address, work) in of_first {
        carried_as_it_was_sent(&pods, &address, work);
    }
    for pod in &pods {
        pod.netns.die();
    }
    scene.end(&pods);
}

#[test]
#[ignore = "scripts/test --full: the same, at length"]
fn a_gib_arrives_as_it_was_sent() {
    let scene = Scene::new();
    let pods = scene.two_annotated();
    carried_as_it_was_sent(&pods, &ipv4(0, 0), (4, 128 * MIB));
    scene.end(&pods);
}

/// Asserts that both ends report SMC-R for the connections, and that all data arrive unchanged in both directions.
#[track_caller]
fn carried_as_it_was_sent(pods: &[SmcPod; 2], address: &str, work: (usize, u64)) {
    let (listener, client) = exchange(&peer(), [&pods[0], &pods[1]], address, work);
    for pod in pods {
        assert_eq!(pod.carried(), ["smcr"], "{address}: {}", shown(&pod.netns));
    }
    client.end();
    listener.end();
}

#[test]
fn a_pod_without_a_request_uses_tcp_and_the_readout_has_the_reason() {
    let scene = Scene::new();
    let pods = [scene.pod(0, "true"), scene.pod(1, "false")];
    for [server, client] in [[0, 1], [1, 0]] {
        let ends = [&pods[server], &pods[client]];
        let (listener, client) = exchange(&peer(), ends, &ends[0].ipv4(PRIMARY), (1, MIB));
        for pod in &pods {
            let carried = pod.carried();
            assert_eq!(carried.len(), 1, "{carried:?}");
            let words = carried[0].strip_prefix("tcp: ").expect("TCP, and why");
            println!("{words}");
            assert!(words.ends_with("device for the connection"), "{carried:?}");
        }
        client.end();
        listener.end();
    }
    scene.end(&pods);
}

#[test]
fn a_process_with_a_connection_is_named_instead_of_waited_for() {
    let scene = Scene::new();
    let pods = scene.two_annotated();
    let (listener, client) = exchange(&peer(), [&pods[0], &pods[1]], &ipv4(0, 0), (1, MIB));
    for pod in &pods {
        let deleted = scene.lab.runtime().del(&pod.only(), &pod.attachment);
        let message = deleted.expect_err("a process has a connection").error(107);
        println!("{message}");
        assert!(message.contains("SMC"), "{message}");
    }
    client.end();
    listener.end();
    wait::until("the connections are closed at both ends", || {
        pods.iter()
            .all(|pod| shown(&pod.netns)["connections"] == json!([]))
    });
    scene.end(&pods);
}

#[test]
#[ignore = "scripts/test --full: every run kills around moves, and around changes of SMC-R on the fake kernel"]
fn nothing_is_left_after_sigkill_at_every_operation() {
    let scene = Scene::new();
    let mut configuration = scene.configuration(0, "on");
    configuration["name"] = "net".into();
    configuration["cniVersion"] = "1.1.0".into();
    // one rail tests the same as two, and is faster
    configuration["devices"] = json!([configuration["devices"][0]]);
    let sweep = Sweep {
        host: &scene.lab.host,
        plugin: plugin::rdma_cni(),
        injector: env!("CARGO_BIN_EXE_fault-injector").into(),
        around: Around::All,
        cni_path: plugin::DEBIAN_PLUGINS.into(),
        configuration,
        before: Snapshot::of(&scene.lab.host),
    };
    for (command, restorers) in [
        ("ADD", [Restorer::Del, Restorer::Add, Restorer::Gc]),
        ("DEL", [Restorer::Gc, Restorer::Del, Restorer::Add]),
    ] {
        let points = sweep.run(command, &restorers);
        println!("{command}: {points} points");
        assert!(points >= 9, "{command} had only {points} points");
    }
}
