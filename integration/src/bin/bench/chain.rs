// SPDX-License-Identifier: Apache-2.0
//! `rdma-cni` beside Debian's `host-device`. Both move the same kind of veth with addresses from
//! Debian's `static`.

use super::run::{Run, call, median, median_of, milliseconds, row, rss, runs, size};
use integration::{
    Netns, Node,
    plugin::{debian, rdma_cni},
};
use rdma_netns::{InterfaceName, Kernel, Linux, NetnsSide, Op, probe::PROBE_TIME};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

const RUNS: usize = 15;
const VERSION_RUNS: usize = 300;

/// In the namespace of `node`'s host.
pub(super) fn measure(node: &Node) {
    let configuration = json!({"devices": [{"netdev": "eth1"}], "requireRdma": false, "interfaceName": "net1", "stateDir": node.state()});
    let mut unprobed = configuration.clone();
    unprobed["probe"] = "off".into();
    let ours = Plugin::new(node, rdma_cni(), "rdma-cni", configuration);
    let unprobed = Plugin::new(node, rdma_cni(), "unprobed", unprobed);
    let configuration = json!({"device": "eth1"});
    let peer = Plugin::new(node, debian("host-device"), "host-device", configuration);

    println!(
        "medians of {} (VERSION) and {} (ADD, DEL) runs, in turn\n",
        runs(VERSION_RUNS),
        runs(RUNS)
    );
    println!(
        "{:<34} {:>12} {:>12} {:>8}",
        "", "rdma-cni", "host-device", "ratio"
    );
    row("size, MB", size(&ours.program), size(&peer.program), 2);

    let (mut our_version, mut peer_version) = (vec![], vec![]);
    for _ in 0..runs(VERSION_RUNS) {
        our_version.push(ours.run("VERSION", Path::new("/")));
        peer_version.push(peer.run("VERSION", Path::new("/")));
    }
    row(
        "VERSION, ms",
        median(&our_version),
        median(&peer_version),
        3,
    );

    let cases = [(None, "no gateway"), (Some("2001:db8::1"), "a gateway")];
    let plugins = [&ours, &unprobed, &peer];
    let mut times: [[Times; 3]; 2] = Default::default();
    let (mut there, mut back) = (vec![], vec![]);
    for _ in 0..runs(RUNS) {
        for ((gateway, _), times) in cases.iter().zip(&mut times) {
            for (plugin, times) in plugins.iter().zip(times) {
                plugin.configure(*gateway);
                plugin.round(node, times);
            }
        }
        let (to_pod, to_host) = bare_moves(node);
        there.push(to_pod);
        back.push(to_host);
    }
    for ((_, title), times) in cases.iter().zip(times) {
        println!("\nstatic IPv6 address, {title}");
        let [our, quick, their] = times;
        row("ADD, ms", median(&our.add), median(&their.add), 1);
        let name = "ADD, ms, \"probe\": \"off\"";
        row(name, median(&quick.add), median(&their.add), 1);
        row("DEL, ms", median(&our.del), median(&their.del), 1);
        let both = |times: &Times| median(&times.add) + median(&times.del);
        row("ADD and DEL, ms", both(&our), both(&their), 1);
        let name = "ADD and DEL, ms, \"probe\": \"off\"";
        row(name, both(&quick), both(&their), 1);
        row(
            "addresses tentative after ADD",
            our.tentative,
            their.tentative,
            0,
        );
        row("peak RSS of ADD, MB", rss(&our.add), rss(&their.add), 1);
    }
    let (there, back) = (median_of(there.into_iter()), median_of(back.into_iter()));
    println!(
        "\na move with nothing around it takes {there:.1} ms there and {back:.1} ms back; \
         Debian's static: one\nprocess each. host-device waits for duplicate address detection where \
         the address has a gateway, and\nelse answers with an address that cannot be used yet; \
         rdma-cni's can be used at once, and was asked for on the wire\nbefore: {} ms of its ADD are the wait for an answer.",
        PROBE_TIME.as_millis()
    );
}

/// What the kernel takes to move the netdev there and back, with nothing around it, ms.
fn bare_moves(node: &Node) -> (f64, f64) {
    let kernel = Linux::new();
    let name = |text: &str| InterfaceName::try_from(text).expect("a name");
    let netns = Netns::new("bench");
    let pod = kernel.open_pod(netns.path()).expect("the pod's namespace");
    let timed = |op: Op| {
        let start = Instant::now();
        kernel.execute(&op, Some(&pod)).expect("the move");
        milliseconds(start.elapsed())
    };
    let (host, in_pod) = (NetnsSide::Host, NetnsSide::Pod);
    let (link, moved) = (name("eth1"), name("net1"));
    let there = timed(Op::MoveLink {
        link: link.clone(),
        from: host,
        to: in_pod,
        name: moved.clone(),
    });
    netns.ip("link set dev net1 up");
    let back = timed(Op::MoveLink {
        link: moved,
        from: in_pod,
        to: host,
        name: link,
    });
    node.host.ip("link set dev eth1 up");
    (there, back)
}

#[derive(Default)]
struct Times {
    add: Vec<Run>,
    del: Vec<Run>,
    tentative: f64,
}

struct Plugin {
    program: PathBuf,
    input: PathBuf,
    configuration: Value,
    cni_path: String,
}

impl Plugin {
    /// `label` is a file name.
    fn new(node: &Node, program: PathBuf, label: &str, mut configuration: Value) -> Self {
        let name = program
            .file_name()
            .expect("a program has a name")
            .to_string_lossy();
        configuration["cniVersion"] = "1.0.0".into();
        configuration["name"] = "bench".into();
        configuration["type"] = (*name).into();
        let input = node.directory().join(format!("{label}.json"));
        let plugin = Self {
            program,
            input,
            configuration,
            cni_path: node.cni_path(),
        };
        plugin.configure(None);
        plugin
    }

    fn configure(&self, gateway: Option<&str>) {
        let mut address = json!({"address": "2001:db8::2/64"});
        if let Some(gateway) = gateway {
            address["gateway"] = gateway.into();
        }
        let mut configuration = self.configuration.clone();
        configuration["ipam"] = json!({"type": "static", "addresses": [address]});
        fs::write(&self.input, configuration.to_string()).expect("the configuration");
    }

    /// ADD to a new pod, a look at its address, DEL.
    fn round(&self, node: &Node, times: &mut Times) {
        let pod = Netns::new("bench");
        times.add.push(self.run("ADD", pod.path()));
        let addresses = pod.ip("-6 address show dev net1 scope global");
        assert!(
            addresses.contains("2001:db8::2/64"),
            "ADD set no address: {addresses}"
        );
        times.tentative += f64::from(u8::from(addresses.contains("tentative")));
        times.del.push(self.run("DEL", pod.path()));
        assert!(node.host.has_link("eth1"), "DEL did not restore the netdev");
        node.host.ip("link set dev eth1 up");
    }

    fn run(&self, command: &str, netns: &Path) -> Run {
        call(&self.program, command, (netns, &self.cni_path), &self.input).0
    }
}
