//! In the lab, bonded NICs shared by pods of real containerd: `integration/lab/vm --tier full
//! --shared --memory 4096`, one test at a time. Kubelet's part is played over the daemon's real
//! sockets; it is containerd that calls the chain.

use integration::{
    BondedNics, Conflist, Containerd, Netns, Snapshot,
    containerd::{
        Pod, PodSpec,
        traffic::{self, End},
    },
    kubelet::{Wish, node::Node},
    lab::uverbs,
    nics, wait,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use std::{fs, time::Duration};

const HCA: &str = "rdma/hca";

/// As the seeds have it.
const OLD_CONFIG_MAP: &str = r#"{ "mode" : "hca" }"#;

struct Scene {
    nics: BondedNics,
    node: Node,
    containerd: Containerd,
}

impl Scene {
    /// A node on which one pod has come and gone: its bridge is there.
    #[track_caller]
    fn new() -> Self {
        let nics = BondedNics::new();
        let node = Node::start(OLD_CONFIG_MAP);
        let containerd = Containerd::start(&node.path("cdi"));
        let scene = Self {
            nics,
            node,
            containerd,
        };
        scene.containerd.network.set(&scene.list());
        let ids = |it: &integration::kubelet::Resource| it.healthy().len() == 1000;
        scene.node.kubelet.wait_for(HCA, "its ids", ids);
        scene.a_pod_without_rdma_is_untouched();
        scene
    }

    /// A primary network, and after it the chain, in which nothing names a device.
    fn list(&self) -> Conflist {
        let bridge = json!({
            "type": "bridge", "bridge": "cni0", "isGateway": true,
            "ipam": {"type": "host-local", "dataDir": self.node.path("networks"),
                     "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]},
        });
        let mut chain = self.node.chain(&[HCA]);
        chain["capabilities"] = json!({ "io.kubernetes.cri.pod-annotations": true });
        chain["ipam"] = json!({
            "type": "rdma-ipam", "from": "parent", "family": "both", "strategy": "stable",
            "dataDir": self.node.path("leases"),
        });
        Conflist::new("1.0.0", vec![bridge, chain])
    }

    /// Kubelet's part for a pod whose one container asks for one `rdma/hca`.
    #[track_caller]
    fn wish(&self, name: &str) -> PodSpec {
        let given = self.node.allocate(&Wish::new(name, "main", HCA, 1));
        PodSpec::new(name).container("main", &[given])
    }

    #[track_caller]
    fn remove(&self, pod: Pod) {
        let name = pod.name.clone();
        pod.remove();
        self.node.free(&name);
    }

    /// What kubelet does with sandboxes that belong to no pod, until there are none.
    #[track_caller]
    fn remove_all(&self) {
        let cri = self.containerd.cri();
        wait::until("there is no sandbox any more", || {
            let all = cri.pods().expect("a list");
            for sandbox in &all {
                let removed = cri.remove(&sandbox.id);
                removed.unwrap_or_else(|status| println!("{}", status.message()));
            }
            all.is_empty()
        });
    }

    #[track_caller]
    fn a_pod_without_rdma_is_untouched(&self) {
        // kubelet knows it, and gave it nothing
        self.node.knows("plain");
        let pod = self
            .containerd
            .pod(&PodSpec::new("plain").container("main", &[]));
        let netns = pod.netns();
        assert_eq!(names(&netns), ["lo", "eth0"]);
        assert_eq!(netns.show("rule show").len(), 3);
        let listed = pod.main().try_sh("ls /dev/infiniband");
        assert_ne!(listed.code, 0, "{}", listed.said);
        assert_eq!(self.records(), 0);
        self.remove(pod);
    }

    /// How many pods have records of the chain.
    fn records(&self) -> usize {
        let records = fs::read_dir(self.node.path("state/attachments/net"));
        records.into_iter().flatten().count()
    }
}

/// The links of a namespace, in their order.
#[track_caller]
fn names(netns: &Netns) -> Vec<String> {
    let links = netns.show("link show");
    let name = |link: &Value| link["ifname"].as_str().unwrap_or_default().to_owned();
    links.iter().map(name).collect()
}

/// The device nodes in a container, `/dev/infiniband/uverbs0 231 192`.
#[track_caller]
fn nodes(pod: &Pod) -> Vec<String> {
    let line = "for it in /dev/infiniband/*; do \
                printf '%s %d %d\\n' $it 0x$(stat -c %t $it) 0x$(stat -c %T $it); done";
    let mut nodes: Vec<String> = pod.main().sh(line).lines().map(str::to_owned).collect();
    nodes.sort();
    nodes
}

/// What they must be: both rails' and the connection manager's.
#[track_caller]
fn nodes_of_all_rails() -> Vec<String> {
    let text = fs::read_to_string("/sys/class/misc/rdma_cm/dev").expect("rdma_cm's number");
    let (major, minor) = text.trim().split_once(':').expect("two numbers");
    let mut nodes = vec![format!("/dev/infiniband/rdma_cm {major} {minor}")];
    for (name, major, minor) in [0, 1].map(|rail| uverbs(&nics::rdma(rail))) {
        nodes.push(format!("/dev/infiniband/{name} {major} {minor}"));
    }
    nodes.sort();
    nodes
}

/// The pod's address on `rail`, of IPv6 or IPv4.
#[track_caller]
fn address(netns: &Netns, rail: usize, ipv6: bool) -> String {
    let addresses = netns.addresses(&format!("rdma{rail}"));
    let address = addresses.iter().find(|it| it.contains(':') == ipv6);
    let address = address.unwrap_or_else(|| panic!("rail {rail}, IPv6 {ipv6}: {addresses:?}"));
    address.split('/').next().expect("an address").to_owned()
}

#[test]
fn one_request_gives_a_container_every_rail_with_devices_addresses_and_traffic() {
    let scene = Scene::new();
    let before = Snapshot::of(&scene.nics.host);
    let pods = ["server", "client"].map(|name| scene.containerd.pod(&scene.wish(name)));
    let netns = [0, 1].map(|pod: usize| pods[pod].netns());
    for (pod, netns) in pods.iter().zip(&netns) {
        assert_eq!(nodes(pod), nodes_of_all_rails());
        assert_eq!(names(netns), ["lo", "eth0", "rdma0", "rdma1"]);
        // kubelet's own address of the pod is its primary network's
        let told = pod.addresses();
        assert!(told[0].starts_with("10.88."), "{told:?}");
    }
    for rail in 0..2 {
        let rdma = nics::rdma(rail);
        let by_tcp = address(&netns[0], rail, false);
        for ipv6 in [true, false] {
            let addresses = [0, 1].map(|pod: usize| address(&netns[pod], rail, ipv6));
            let end = |pod: usize| End {
                container: pods[pod].main(),
                rdma: &rdma,
                address: &addresses[pod],
            };
            traffic::rping(end(0), end(1));
            if ipv6 {
                let sent = sent_packets(&rdma);
                traffic::read_bandwidth(end(0), end(1), &by_tcp, 30);
                // 30 pairs, 20 reads each, four packets of 1024 bytes a read
                assert!(
                    sent_packets(&rdma) >= sent + 30 * 20 * 4,
                    "by another device"
                );
            }
        }
    }
    for pod in pods {
        scene.remove(pod);
    }
    before.assert_restored(&scene.nics.host);

    a_pod_of_the_hosts_network_has_the_hosts_devices(&scene);
    before.assert_restored(&scene.nics.host);
    assert_eq!(scene.records(), 0);
}

#[track_caller]
fn sent_packets(rdma: &str) -> u64 {
    let file = format!("/sys/class/infiniband/{rdma}/ports/1/hw_counters/sent_pkts");
    let text = fs::read_to_string(file).expect("a counter");
    text.trim().parse().expect("a number")
}

#[track_caller]
fn a_pod_of_the_hosts_network_has_the_hosts_devices(scene: &Scene) {
    let pod = scene.containerd.pod(&scene.wish("on-host").host_network());
    assert_eq!(nodes(&pod), nodes_of_all_rails());
    assert_eq!(scene.records(), 0, "the chain was called for hostNetwork");
    for rail in 0..2 {
        let end = End {
            container: pod.main(),
            rdma: &nics::rdma(rail),
            address: &format!("{}1", nics::ipv6_start(rail)),
        };
        traffic::rping(end, end);
    }
    scene.remove(pod);
}

#[test]
fn pods_that_end_in_any_way_leave_the_node_as_it_was() {
    let mut scene = Scene::new();
    let before = Snapshot::of(&scene.nics.host);

    // all processes of a pod are killed; kubelet sees it and removes the pod
    let killed = scene.containerd.pod(&scene.wish("killed"));
    let lives = scene.containerd.pod(&scene.wish("lives"));
    let signalled = kill(Pid::from_raw(killed.pid()), Signal::SIGKILL);
    signalled.expect("its sandbox's process");
    wait::until("containerd sees it", || !killed.is_ready());

    // containerd is killed, and starts again beside what it had started
    scene.containerd.go(Signal::SIGKILL);
    scene.containerd.come();
    assert!(!killed.is_ready());
    assert!(lives.is_ready());
    assert_eq!(nodes(&lives), nodes_of_all_rails());
    let netns = lives.netns();
    for rail in 0..2 {
        let end = End {
            container: lives.main(),
            rdma: &nics::rdma(rail),
            address: &address(&netns, rail, true),
        };
        traffic::rping(end, end);
    }
    scene.remove(killed);
    // a new pod beside the old one, by the new process
    let new = scene.containerd.pod(&scene.wish("new"));
    assert_eq!(names(&new.netns()), ["lo", "eth0", "rdma0", "rdma1"]);
    scene.remove(new);
    scene.remove(lives);
    before.assert_restored(&scene.nics.host);
    assert_eq!(scene.records(), 0);

    // a sandbox is given up while the chain's ADD runs, at any moment of it
    for tenths in [5, 10, 15, 20, 25, 30] {
        let name = format!("given-up-{tenths}");
        let limit = Duration::from_millis(tenths * 100);
        let given_up = scene.containerd.give_up(&scene.wish(&name), limit);
        println!(
            "{name}: {:?}, {} records",
            given_up.is_ok(),
            scene.records()
        );
        scene.remove_all();
        scene.node.free(&name);
        before.assert_restored(&scene.nics.host);
        assert_eq!(scene.records(), 0, "{name}");
    }
}

#[test]
fn containerd_killed_while_add_runs_leaves_nothing_that_the_next_pods_cannot_heal() {
    let mut scene = Scene::new();
    let before = Snapshot::of(&scene.nics.host);
    for tenths in [10, 20] {
        let name = format!("orphan-{tenths}");
        let limit = Duration::from_millis(tenths * 100);
        let spec = scene.wish(&name);
        let given_up = scene.containerd.give_up(&spec, limit);
        scene.containerd.go(Signal::SIGKILL);
        println!(
            "{name}: {:?}, {} records",
            given_up.is_ok(),
            scene.records()
        );
        scene.containerd.come();
        scene.remove_all();
        scene.node.free(&name);
        let next = scene.containerd.pod(&scene.wish("next"));
        scene.remove(next);
        before.assert_restored(&scene.nics.host);
        assert_eq!(scene.records(), 0, "{name}");
    }
}
