//! In the lab, one resource request in shared mode: `integration/lab/vm --tier full --shared`, one
//! test at a time. The daemon has the user's old ConfigMap, and the node bonds over its NICs.

use integration::{
    Attachment, BondedNics, Conflist, Netns, Runtime, Snapshot,
    kubelet::{Allocation, Wish, node::Node},
    lab::{NICS, uverbs},
    nics,
    traffic::{self, End, Write},
    wait,
};
use serde_json::{Value, json};
use std::{fs, time::Duration};

/// As the seeds have it.
const OLD_CONFIG_MAP: &str = r#"{ "mode" : "hca" }"#;

/// Presence and port state are told within this time (`docs/device-plugin.md`).
const TOLD: Duration = Duration::from_secs(1);

struct Scene {
    nics: BondedNics,
    node: Node,
}

struct Pod {
    name: String,
    netns: Netns,
    list: Conflist,
    attachment: Attachment,
    result: Value,
    given: Allocation,
}

impl Scene {
    fn new(configuration: &str) -> Self {
        let nics = BondedNics::new();
        let node = Node::start(configuration);
        Self { nics, node }
    }

    fn runtime(&self) -> Runtime<'_> {
        let cache = self.node.path("cache");
        Runtime::new(&self.nics.host, &self.node.cni_path(), &cache)
    }

    /// The chain: nothing in it names a device.
    fn list(&self) -> Conflist {
        let mut plugin = self.node.chain(&["rdma/hca"]);
        plugin["ipam"] = json!({
            "type": "rdma-ipam",
            "from": "parent",
            "family": "both",
            "strategy": "stable",
            "dataDir": self.node.path("leases"),
        });
        Conflist::new("1.1.0", vec![plugin])
    }

    /// Kubelet's part, then the runtime's.
    #[track_caller]
    fn pod(&self, name: &str) -> Pod {
        let given = self.node.allocate(&Wish::new(name, "main", "rdma/hca", 1));
        let netns = Netns::new(name);
        netns.ip("link set dev lo up");
        let list = self.list();
        let attachment = Attachment::new(&format!("sandbox-{name}"), netns.path(), "eth0")
            .of_pod("default", name);
        let added = self.runtime().add(&list, &attachment);
        let result = added.unwrap_or_else(|outcome| panic!("{outcome}"));
        self.node.may_start(name);
        Pod {
            name: name.to_owned(),
            netns,
            list,
            attachment,
            result,
            given,
        }
    }

    #[track_caller]
    fn delete(&self, pod: &Pod) {
        let deleted = self.runtime().del(&pod.list, &pod.attachment);
        deleted.unwrap_or_else(|outcome| panic!("{outcome}"));
        self.node.free(&pod.name);
    }

    fn healthy(&self) -> usize {
        let known = self.node.kubelet.resource("rdma/hca");
        known.map_or(0, |it| it.healthy().len())
    }
}

impl Pod {
    /// Its address on `rail`, of IPv6 or IPv4, and the index of that address's GID.
    #[track_caller]
    fn address(&self, rail: usize, ipv6: bool) -> (String, usize) {
        let gids = self.result["rails"][rail]["gids"].as_array();
        let of_family = |gid: &&Value| gid["address"].as_str().expect("text").contains(':') == ipv6;
        let gid = gids.and_then(|gids| gids.iter().find(of_family));
        let gid = gid.unwrap_or_else(|| panic!("IPv6 {ipv6}: {}", self.result));
        let index = gid["index"].as_u64().expect("an index");
        let address = gid["address"].as_str().expect("an address");
        (address.to_owned(), index as usize)
    }
}

#[test]
fn one_request_gives_every_rail_with_an_address_and_traffic() {
    let scene = Scene::new(OLD_CONFIG_MAP);
    let before = Snapshot::of(&scene.nics.host);
    scene
        .node
        .kubelet
        .wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
    let pods = ["server", "client"].map(|name| scene.pod(name));
    let devices = [0, 1].map(nics::rdma);
    for pod in &pods {
        let paths = pod.given.given.devices.iter().map(|it| &*it.container_path);
        let mut paths: Vec<&str> = paths.collect();
        paths.sort_unstable();
        let mut wanted: Vec<String> = devices
            .iter()
            .map(|rdma| format!("/dev/infiniband/{}", uverbs(rdma).0))
            .chain(["/dev/infiniband/rdma_cm".to_owned()])
            .collect();
        wanted.sort_unstable();
        assert_eq!(paths, wanted);
        for (rail, device) in devices.iter().enumerate() {
            let told = &pod.result["rails"][rail];
            assert_eq!(told["rdmaDevice"], *device);
            assert_eq!(told["mode"], "share");
            let (ipv6, _) = pod.address(rail, true);
            assert!(ipv6.starts_with(&nics::ipv6_start(rail)), "{ipv6}");
        }
        let checked = scene.runtime().check(&pod.list, &pod.attachment);
        checked.unwrap_or_else(|outcome| panic!("{outcome}"));
    }
    for rail in 0..2 {
        for ipv6 in [true, false] {
            traffic(&pods, rail, ipv6);
        }
    }
    held_by(&scene, &pods, &devices);
    for pod in &pods {
        scene.delete(pod);
    }
    before.assert_restored(&scene.nics.host);
    let allocated = scene
        .node
        .metric("rdma_device_plugin_allocated", &[("resource", "rdma/hca")]);
    assert_eq!(allocated, Some(0.0));
}

/// `rping`, and `ib_write_bw` whose data the RDMA device counted.
#[track_caller]
fn traffic(pods: &[Pod; 2], rail: usize, ipv6: bool) {
    let rdma = nics::rdma(rail);
    let addresses = [0, 1].map(|pod: usize| pods[pod].address(rail, ipv6));
    let end = |index: usize| End {
        pod: &pods[index].netns,
        rdma: &rdma,
        address: &addresses[index].0,
    };
    traffic::rping(end(0), end(1));
    let packets = || {
        let file = format!("/sys/class/infiniband/{rdma}/ports/1/hw_counters/sent_pkts");
        let text = fs::read_to_string(file).expect("a counter");
        text.trim().parse::<u64>().expect("a number")
    };
    let before = packets();
    let (by_tcp, _) = pods[0].address(rail, false);
    Write::new(end(0), end(1), &by_tcp)
        .gids(addresses[0].1, addresses[1].1)
        .start()
        .bandwidth();
    // 100 writes of 4096 bytes, 1024 bytes a packet
    assert!(packets() >= before + 400, "sent by another device");
}

/// The metrics name both pods as holders of both devices.
#[track_caller]
fn held_by(scene: &Scene, pods: &[Pod; 2], devices: &[String; 2]) {
    for pod in pods {
        for device in devices {
            let labels = [
                ("device", device.as_str()),
                ("resource", "rdma/hca"),
                ("namespace", "default"),
                ("pod", &pod.name),
                ("container", "main"),
            ];
            let holder = scene.node.metric("rdma_device_holder", &labels);
            assert_eq!(holder, Some(1.0), "{labels:?}\n{}", scene.node.metrics());
        }
    }
    let allocated = scene
        .node
        .metric("rdma_device_plugin_allocated", &[("resource", "rdma/hca")]);
    assert_eq!(allocated, Some(2.0));
    let sent = scene.node.metric(
        "rdma_hw_sent_pkts_total",
        &[("device", devices[0].as_str())],
    );
    assert!(sent.is_some_and(|sent| sent > 0.0), "{sent:?}");
}

#[test]
fn a_pod_without_an_allocation_is_passed_through_and_one_that_nobody_knows_is_not() {
    let scene = Scene::new(OLD_CONFIG_MAP);
    let kubelet = &scene.node.kubelet;
    kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 1000);
    let wish = Wish::new("plain", "main", "rdma/hca", 1);
    scene.node.allocate(&wish);
    let netns = Netns::new("plain");
    let attachment =
        Attachment::new("sandbox-plain", netns.path(), "eth0").of_pod("default", "plain");
    // kubelet gave the pod nothing of this resource
    let list = Conflist::new("1.1.0", vec![scene.node.chain(&["aliyun/erdma"])]);
    let passed = scene.runtime().add(&list, &attachment);
    let passed = passed.unwrap_or_else(|outcome| panic!("{outcome}"));
    assert_eq!(passed["interfaces"], Value::Null, "{passed}");
    let checked = scene.runtime().check(&list, &attachment);
    checked.unwrap_or_else(|outcome| panic!("{outcome}"));
    let deleted = scene.runtime().del(&list, &attachment);
    deleted.unwrap_or_else(|outcome| panic!("{outcome}"));

    scene.node.free("plain");
    let refused = scene.runtime().add(&scene.list(), &attachment);
    let unknown = refused
        .expect_err("kubelet does not know the pod")
        .error(11);
    assert!(unknown.contains("default/plain"), "{unknown}");
    assert_eq!(
        netns.show("link show").len(),
        1,
        "something came into the pod"
    );
}

#[test]
fn a_rail_that_goes_down_is_told_within_a_second_and_back_within_another() {
    let scene = Scene::new(
        r#"{"resources": [{"name": "rdma/hca", "kind": "shared", "count": 100, "allocate": "numa"}]}"#,
    );
    let kubelet = &scene.node.kubelet;
    let known = kubelet.wait_for("rdma/hca", "its ids", |it| it.healthy().len() == 100);
    // each id is one NIC's, with that NIC's NUMA node
    for node in [0, 1] {
        let on_node = known.devices.iter().filter(|it| {
            let nodes = it.topology.iter().flat_map(|it| &it.nodes);
            nodes.map(|it| it.id).eq([node])
        });
        assert_eq!(on_node.count(), 50);
    }
    let aligned = scene
        .node
        .allocate(&Wish::new("aligned", "main", "rdma/hca", 1).on_numa_node(1));
    let paths: Vec<&str> = aligned
        .given
        .devices
        .iter()
        .map(|it| &*it.host_path)
        .collect();
    assert!(paths.contains(&&*format!("/dev/infiniband/{}", uverbs("mlx5_bond_1").0)));
    assert!(!paths.contains(&&*format!("/dev/infiniband/{}", uverbs("mlx5_bond_0").0)));

    scene
        .nics
        .host
        .ip(&format!("link set dev {} down", NICS[0]));
    wait::until("the bond has lost its carrier", || {
        fs::read_to_string("/sys/class/net/bond0/carrier").is_ok_and(|it| it.trim() == "0")
    });
    let told = kubelet.within(TOLD, "rdma/hca", |it| {
        it.is_some_and(|it| it.healthy().len() == 50)
    });
    assert!(told, "{} healthy", scene.healthy());
    scene.nics.host.ip(&format!("link set dev {} up", NICS[0]));
    wait::until("the bond has its carrier again", || {
        fs::read_to_string("/sys/class/net/bond0/carrier").is_ok_and(|it| it.trim() == "1")
    });
    let told = kubelet.within(TOLD, "rdma/hca", |it| {
        it.is_some_and(|it| it.healthy().len() == 100)
    });
    assert!(told, "{} healthy", scene.healthy());
}
