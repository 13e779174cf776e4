// SPDX-License-Identifier: Apache-2.0
//! In the lab, pods of a real container runtime that share bonded NICs:
//! `integration/lab/vm --tier full --shared --memory 4096`, one test at a time. A stand-in acts as kubelet on the
//! daemon's real sockets; the runtime calls the chain.

use integration::{
    Snapshot,
    container_runtime::{
        Engine, Pod, PodSpec, SharedNode,
        shared::{HCA, address, links, namespaces, nodes_of_all_rails},
        traffic::{self, End},
    },
    daemon,
    kubelet::{Allocation, AllocationRequest},
    lab, nics, wait,
};
use nix::sys::signal::Signal;
use std::{thread, time::Duration};
use tonic::Code;

/// Time limit between the start of a sandbox and the chain's ADD.
const TO_BEGIN: Duration = Duration::from_secs(180);

/// A node on which a pod without RDMA has started and ended. The chain did not change this pod.
#[track_caller]
fn node_with_a_bridge() -> SharedNode {
    let node = SharedNode::new();
    let pod = node.plain("plain");
    let netns = pod.netns();
    assert_eq!(links(&netns), ["lo", "eth0"]);
    assert_eq!(netns.show("rule show").len(), 3);
    let listed = pod.main().try_sh("ls /dev/infiniband");
    assert!(listed.output.contains("No such file"), "{}", listed.output);
    assert_eq!(node.records(), 0);
    node.remove(pod);
    node
}

#[test]
#[ignore = "scripts/test --full: lab_cluster shows it with the real kubelet, but for the metrics"]
fn one_request_gives_a_container_every_rail_with_devices_addresses_and_traffic() {
    let node = node_with_a_bridge();
    let before = Snapshot::of(&node.nics.host);
    let pods = ["server", "client"].map(|name| node.runtime.pod(&node.pod_with_hca(name)));
    let netns = [0, 1].map(|pod: usize| pods[pod].netns());
    for (pod, netns) in pods.iter().zip(&netns) {
        assert_eq!(pod.main().rdma_nodes(), nodes_of_all_rails());
        assert_eq!(links(netns), ["lo", "eth0", "rdma0", "rdma1"]);
        // kubelet reports the pod's address of the primary network
        let reported = pod.addresses();
        assert!(reported[0].starts_with("10.88."), "{reported:?}");
    }
    for rail in 0..2 {
        let rdma = nics::rdma(rail);
        for ipv6 in [true, false] {
            let addresses = [0, 1].map(|pod: usize| address(&netns[pod], rail, ipv6));
            let end = |pod: usize| End {
                container: pods[pod].main(),
                rdma: &rdma,
                address: &addresses[pod],
            };
            traffic::rping(end(0), end(1));
            if ipv6 {
                let by_tcp = address(&netns[0], rail, false);
                let sent = nics::sent_packets(&rdma);
                traffic::read_bandwidth(end(0), end(1), &by_tcp, 30);
                // 30 pairs, 20 reads each, four packets of 1024 bytes per read
                assert!(
                    nics::sent_packets(&rdma) >= sent + 30 * 20 * 4,
                    "by another"
                );
            }
        }
    }
    held_by(&node, &pods);
    for pod in pods {
        node.remove(pod);
    }
    before.assert_restored(&node.nics.host);
    assert_eq!(allocated(&node), Some(0.0));

    a_pod_of_the_hosts_network_has_the_hosts_devices(&node);
    before.assert_restored(&node.nics.host);
    assert_eq!(node.records(), 0);
}

/// Asserts that the metrics name both pods as users of both devices, and count packets that the devices have sent.
#[track_caller]
fn held_by(node: &SharedNode, pods: &[Pod; 2]) {
    for rdma in [0, 1].map(nics::rdma) {
        for pod in pods {
            let labels = [
                ("device", rdma.as_str()),
                ("resource", HCA),
                ("namespace", "default"),
                ("pod", &pod.name),
                ("container", "main"),
            ];
            let holder = node.node.metric("rdma_device_holder", &labels);
            assert_eq!(holder, Some(1.0), "{labels:?}\n{}", node.node.metrics());
        }
        let sent = node
            .node
            .metric("rdma_hw_sent_pkts_total", &[("device", rdma.as_str())]);
        assert!(sent.is_some_and(|sent| sent > 0.0), "{rdma}: {sent:?}");
    }
    assert_eq!(allocated(node), Some(2.0));
}

#[track_caller]
fn allocated(node: &SharedNode) -> Option<f64> {
    node.node
        .metric("rdma_device_plugin_allocated", &[("resource", HCA)])
}

#[track_caller]
fn a_pod_of_the_hosts_network_has_the_hosts_devices(node: &SharedNode) {
    let pod = node
        .runtime
        .pod(&node.pod_with_hca("on-host").host_network());
    assert_eq!(pod.main().rdma_nodes(), nodes_of_all_rails());
    assert_eq!(node.records(), 0, "the chain was called for hostNetwork");
    for rail in 0..2 {
        let end = End {
            container: pod.main(),
            rdma: &nics::rdma(rail),
            address: &format!("{}1", nics::ipv6_start(rail)),
        };
        traffic::rping(end, end);
    }
    node.remove(pod);
}

#[test]
fn pods_that_end_in_any_way_leave_the_node_as_it_was() {
    let mut node = node_with_a_bridge();
    let before = Snapshot::of(&node.nics.host);

    // all processes of a pod are killed; kubelet notices this and removes the pod
    let killed = node.runtime.pod(&node.pod_with_hca("killed"));
    let lives = node.runtime.pod(&node.pod_with_hca("lives"));
    killed.kill();
    let keeps_no_process = node.runtime.engine() == Engine::Crio;
    wait::until("the runtime sees it", || {
        killed.has_ended() && (keeps_no_process || !killed.is_ready())
    });

    // the runtime is killed, and starts again; its containers continue
    node.runtime.go(Signal::SIGKILL);
    node.runtime.come();
    assert!(killed.has_ended());
    assert!(lives.is_ready());
    assert_eq!(lives.main().rdma_nodes(), nodes_of_all_rails());
    let netns = lives.netns();
    for rail in 0..2 {
        let end = End {
            container: lives.main(),
            rdma: &nics::rdma(rail),
            address: &address(&netns, rail, true),
        };
        traffic::rping(end, end);
    }
    node.remove(killed);
    // the runtime's new process starts a pod while the old pod runs
    let new = node.runtime.pod(&node.pod_with_hca("new"));
    assert_eq!(links(&new.netns()), ["lo", "eth0", "rdma0", "rdma1"]);
    node.remove(new);
    node.remove(lives);
    before.assert_restored(&node.nics.host);
    assert_eq!(node.records(), 0);
    given_up_while_add_runs(&node, &before);
    killed_while_add_runs(&mut node, &before);
}

/// Kubelet abandons a sandbox: before the chain's ADD begins, and while it runs.
#[track_caller]
fn given_up_while_add_runs(node: &SharedNode, before: &Snapshot) {
    for (name, records) in [("given-up-before", 0), ("given-up-within", 1)] {
        let named = namespaces();
        let mut seen = None;
        let enough = || {
            // the runtime creates the sandbox's namespace just before it calls the first plugin
            let found = node.records();
            let enough = found == records && namespaces() != named;
            seen = seen.or(enough.then_some(found));
            enough
        };
        let given_up = node.runtime.give_up(&node.pod_with_hca(name), enough);
        assert!(given_up.is_err(), "{name} came");
        assert_eq!(seen, Some(records), "{name}: {given_up:?}");
        node.remove_all(&named);
        node.node.free(name);
        before.assert_restored(&node.nics.host);
        assert_eq!(node.records(), 0, "{name}");
    }
}

/// The runtime is killed while ADD runs, and ADD continues. After the runtime's restart, kubelet removes the sandboxes
/// that the runtime reports.
#[track_caller]
fn killed_while_add_runs(node: &mut SharedNode, before: &Snapshot) {
    let (spec, named) = (node.pod_with_hca("orphan"), namespaces());
    let cri = node.runtime.cri().clone();
    thread::scope(|scope| {
        let started = scope.spawn(|| spec.run_sandbox(&cri));
        let runs = wait::within(TO_BEGIN, || node.records() == 1 || started.is_finished());
        assert!(runs, "no ADD within {TO_BEGIN:?}");
        assert!(!started.is_finished(), "{:?}", started.join());
        node.runtime.go(Signal::SIGKILL);
        let started = started.join().expect("an answer, or none");
        assert!(started.is_err(), "the sandbox came");
    });
    node.runtime.come();
    node.remove_what_was_cut_off(&named);
    node.node.free("orphan");
    before.assert_restored(&node.nics.host);
    assert_eq!(node.records(), 0);
}

/// A configuration with all variables for programs that search for their rails. The values are those of the container's
/// own pod.
const ALL_VARIABLES: &str = r#"{"cdi": true, "resources": [{
    "name": "rdma/hca", "kind": "shared", "environment": ["rails", "nccl", "ucx", "nvshmem"]
}]}"#;

/// Asserts that the container's environment names the rails, each with the GID index of its pod's address. If all rails
/// have the same index, the file for NCCL contains it.
#[track_caller]
fn knows_its_rails(pod: &Pod) -> Vec<u64> {
    let output = pod.main().sh("echo \"$RDMA_RAILS\"");
    let rails: serde_json::Value = serde_json::from_str(&output).expect("JSON");
    let rails = rails.as_array().expect("a list");
    let netns = pod.netns();
    let indexes = rails.iter().enumerate().map(|(number, rail)| {
        assert_eq!(rail["interface"], format!("rdma{number}"), "{output}");
        assert_eq!(rail["rdmaDevice"], nics::rdma(number), "{output}");
        let own = address(&netns, number, true);
        let gids = rail["gids"].as_array().expect("a list").iter();
        let mut own = gids.filter(|gid| gid["address"] == own);
        own.next().expect("of its address")["index"]
            .as_u64()
            .expect("a number")
    });
    let indexes: Vec<u64> = indexes.collect();
    let first = rails[0]["gidIndex"].as_u64().expect("a number");
    let is_one = rails.iter().all(|rail| rail["gidIndex"] == first);
    let names = [0, 1].map(nics::rdma);
    let mut expected = format!("NCCL_IB_HCA=={},{}\n", names[0], names[1]);
    // if the indexes differ, the file has none; without an index NCCL uses the node's GID, the first in the table
    if is_one {
        expected += &format!("NCCL_IB_GID_INDEX={first}\n");
    }
    assert_eq!(pod.main().sh("cat $NCCL_CONF_FILE"), expected);
    let of_ucx = format!("UCX_NET_DEVICES={0}:1,{1}:1\n", names[0], names[1]);
    assert_eq!(pod.main().sh("cat $UCX_CONFIG_DIR/ucx.conf"), of_ucx);
    let refused = pod.main().try_sh("echo x >>/run/rdma/nccl.conf");
    assert_ne!(refused.code, 0, "it is for reading: {}", refused.output);
    indexes
}

#[test]
fn each_container_gets_its_own_pods_rails() {
    let node = SharedNode::of(ALL_VARIABLES, 1000);
    let start = |spec: &PodSpec| {
        let ask = |it: &Allocation| node.node.kubelet.before_start(&it.resource, &it.ids);
        let pod = node.runtime.run_asking(spec, ask);
        pod.unwrap_or_else(|status| panic!("{}", status.message()))
    };
    let unprepared = node.runtime.run(&node.pod_with_hca("untold"));
    let why = unprepared.expect_err("nothing is known of it");
    assert!(
        why.message().contains("unresolvable CDI devices"),
        "{}",
        why.message()
    );
    node.node.free("untold");
    let pods = ["first", "second"].map(|name| start(&node.pod_with_hca(name)));
    let indexes = pods.each_ref().map(knows_its_rails);
    assert_eq!(indexes[0].len(), 2);
    assert_ne!(indexes[0], indexes[1], "they have addresses of their own");
    let state = node.node.path("state");
    for (index, expected) in [(indexes[0][0], "right: fd00:"), (0, "wrong: ")] {
        let pinned = format!("--gid-index {index} --state-dir {}", state.display());
        let program = daemon::rdma_device_plugin();
        let line = format!("{} doctor pod default/first {pinned}", program.display());
        let output = node.nics.host.run(&line);
        assert!(
            output.contains(&format!("NCCL_IB_GID_INDEX={index}: {expected}")),
            "{output}"
        );
    }
    let names = [0, 1].map(nics::rdma);
    let output = pods[0].main().sh("echo $NVSHMEM_HCA_LIST");
    assert_eq!(output.trim(), format!("{}:1,{}:1", names[0], names[1]));
    let on_host = start(&node.pod_with_hca("on-host").host_network());
    assert_eq!(on_host.main().sh("echo $RDMA_RAILS").trim(), "[]");
    let of_node = format!("NCCL_IB_HCA=={},{}\n", names[0], names[1]);
    assert_eq!(on_host.main().sh("cat $NCCL_CONF_FILE"), of_node);
    node.remove(on_host);
    for pod in pods {
        node.remove(pod);
    }
}

/// A configuration in which each bond belongs to one pod.
const ALONE: &str = r#"{"resources": [{"name": "rdma/hca", "kind": "exclusive"}]}"#;

#[test]
fn a_bond_can_be_one_pods_alone() {
    let node = SharedNode::of(ALONE, 2);
    // this pod creates the bridge of the primary network
    node.remove(node.plain("plain"));
    let before = Snapshot::of(&node.nics.host);
    let pods = ["first", "second"].map(|name| node.runtime.pod(&node.pod_with_hca(name)));
    let third = AllocationRequest::new("third", "main", HCA, 1);
    let refused = node.node.kubelet.allocate(&third);
    assert_eq!(
        refused.expect_err("none is left").code(),
        Code::ResourceExhausted
    );
    let mut had = vec![];
    for pod in &pods {
        let netns = pod.netns();
        assert_eq!(links(&netns), ["lo", "eth0", "rdma0"]);
        let mut own = pod.main().rdma_nodes();
        own.retain(|(name, ..)| name != "rdma_cm");
        let [(uverbs, ..)] = &own[..] else {
            panic!("{own:?}");
        };
        let rail = [0, 1]
            .into_iter()
            .find(|rail| lab::uverbs(&nics::rdma(*rail)).0 == *uverbs);
        let rail = rail.expect("one of the bonds' devices");
        let start = nics::ipv6_start(rail);
        let addresses = netns.addresses("rdma0");
        let own = addresses.iter().find(|it| it.starts_with(&start));
        let own = own.unwrap_or_else(|| panic!("{addresses:?}"));
        let (own, _) = own.split_once('/').expect("a prefix");
        let end = End {
            container: pod.main(),
            rdma: &nics::rdma(rail),
            address: own,
        };
        traffic::rping(end, end);
        had.push(rail);
    }
    had.sort_unstable();
    assert_eq!(had, [0, 1]);
    for pod in pods {
        node.remove(pod);
    }
    assert_eq!(node.records(), 0);
    before.assert_restored(&node.nics.host);
}
