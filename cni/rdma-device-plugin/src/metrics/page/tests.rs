// SPDX-License-Identifier: Apache-2.0
//! Tests of the page with constructed nodes.

use super::Page;
use crate::{
    chain::ChainStatus,
    kubelet::PodContainer,
    metrics::{
        Metrics,
        collect::Snapshot,
        holders::{Held, Holder},
        limited::Limited,
    },
    refused::PodName,
};
use attachments::pods::{PodRail, PodRails, RailAddress};
use daemon_conf::{Conf, Ids, ResourceName};
use node_state::node::Node;
use offer::{Environment, Gone, Offer, OfferedDevice};
use rdma_netns::{DeviceAddress, Inventory, PciPath};
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

/// Largest size of the page for any node, in bytes.
const LARGEST: usize = 400_000;

/// Data of a scrape, and the daemon's metrics.
#[derive(Default)]
struct Found {
    node: Node,
    chain: ChainStatus,
    rails: Vec<PodRails>,
    held: Held,
    metrics: Metrics,
}

impl Found {
    fn with(inventory: Value) -> Self {
        let inventory: Inventory = serde_json::from_value(inventory).expect("an inventory");
        let node = Node {
            inventory: Arc::new(inventory),
            ..Node::default()
        };
        Self {
            node,
            ..Self::default()
        }
    }

    fn unhealthy(&mut self, device: &str, why: &str) {
        self.node.unhealthy.insert(address(device), why.to_owned());
    }

    fn page(&self) -> String {
        let snapshot = Snapshot {
            node: Arc::new(self.node.clone()),
            chain: self.chain.clone(),
            held: Some(self.held.clone()),
            ports: Some(BTreeMap::new()),
            reports: None,
            smc: vec![],
            limited: Limited::default(),
            claims: BTreeMap::new(),
            without_ipv6: vec![],
        };
        let probes = [Ok("ok: 1 resources\n".into()), Err("not yet <b>\n".into())];
        let page = Page::new(
            "node-1\n",
            &self.metrics,
            &snapshot,
            &self.rails,
            probes,
            vec![],
        );
        let page = page.render();
        is_well_formed(&page);
        page
    }
}

/// Asserts that the page closes its elements in the right order.
#[track_caller]
fn is_well_formed(page: &str) {
    const VOID: [&str; 4] = ["!DOCTYPE", "meta", "br", "/"];
    let mut open = Vec::new();
    let (_, body) = page.split_once("</style>").expect("a style");
    for tag in body.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("the end of a tag");
        let name = tag.split([' ', '/']).next().expect("a name");
        match tag.strip_prefix('/') {
            Some(closed) => {
                let last = open.pop();
                let is_style = last.is_none() && closed == "head";
                assert!(
                    last == Some(closed) || is_style || closed == "html",
                    "</{closed}> after {last:?}"
                );
            }
            None if VOID.contains(&name) || tag.ends_with('/') => {}
            None => open.push(name),
        }
    }
    assert_eq!(open, [] as [&str; 0]);
}

fn address(text: &str) -> DeviceAddress {
    text.to_owned().try_into().expect("an address")
}

fn nic(number: usize) -> Value {
    json!({
        "address": format!("0000:{:02x}:00.0", 0x1a + number * 0x11),
        "driver": "mlx5_core", "numa_node": number / 4,
        "netdevs": [{"name": format!("ens{}f0", number + 1), "mac": "94:6d:ae:00:00:10",
                     "carrier": true, "mtu": 4200, "speed": 400_000}],
        "hcas": [{"name": format!("mlx5_{number}"), "firmware": "28.43.2026",
                  "ports": [{"number": 1, "state": 4, "link_type": "ether"}]}],
    })
}

/// Returns a virtual function of the first NIC.
fn function(number: usize) -> Value {
    json!({
        "address": format!("0000:1a:{:02x}.{}", 1 + number / 8, number % 8),
        "driver": "mlx5_core", "numa_node": 0, "physical_function": "0000:1a:00.0",
        "hcas": [{"name": format!("mlx5_{}", number + 8)}],
    })
}

fn rail(place: usize, device: &Value) -> PodRail {
    let hca = device["hcas"][0]["name"].as_str().expect("a name");
    PodRail {
        name: format!("rdma{place}"),
        host_netdev: device["netdevs"][0]["name"].as_str().map(str::to_owned),
        shared: false,
        rdma: Some(hca.to_owned()),
        node_guid: None,
        erdma_verbs: None,
        devices: vec![address(device["address"].as_str().expect("an address"))],
        addresses: vec![RailAddress {
            ip: format!("fd00:c{place}::7").parse().expect("an address"),
            gid_index: Some(3),
        }],
    }
}

fn pod(name: &str, devices: &[Value]) -> PodRails {
    let rails = devices.iter().enumerate();
    PodRails {
        pod: name.to_owned(),
        phase: "attached".to_owned(),
        rails: rails.map(|(place, it)| rail(place, it)).collect(),
    }
}

#[track_caller]
fn has(page: &str, expected: &[&str]) {
    for text in expected {
        assert!(page.contains(text), "no {text} in:\n{page}");
    }
}

#[test]
fn eight_nics_on_two_numa_nodes() {
    let nics: Vec<Value> = (0..8).map(nic).collect();
    let accelerators: Vec<Value> = (0..8)
        .map(|it| json!({"address": format!("0000:{it:02x}:00.0"), "vendor": "10de", "numa_node": it / 4}))
        .collect();
    let mut found = Found::with(json!({"functions": nics, "accelerators": accelerators}));
    found.rails = vec![
        pod("team/train-0", &nics[..4]),
        pod("team/train-1", &nics[4..]),
    ];
    found.chain = ChainStatus::Called(conflist::Called {
        file: "10-net.conflist".into(),
        network: "net".into(),
        by_others: false,
    });
    found.unhealthy("0000:4d:00.0", "ens4f0 has no carrier");
    let history = found.metrics.history();
    let at = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    history.follow(&found.node, at);
    history.line(true, "the chain cannot be read", at);
    let page = found.page();
    has(
        &page,
        &[
            "NUMA node 0",
            "NUMA node 1",
            "4 accelerators",
            "1 of 8 unhealthy",
            "up, 400 Gbit/s",
            "fd00:c3::7",
            "GID 3",
            "ens4f0 has no carrier",
            "<time>2023-11-14 22:13:20 UTC</time>",
            "<code>0000:4d:00.0 (mlx5_3)</code>",
            "the chain cannot be read",
            "called",
        ],
    );
    let of = |class: &str| page.matches(&format!("class=\"line {class}\"")).count();
    assert_eq!(of("bad"), 1);
    let lines: usize = (0..8).map(|it| of(&format!("c{it}"))).sum();
    assert_eq!(lines, 7);
}

#[test]
fn a_node_without_rdma_reports_it() {
    let page = Found::default().page();
    has(
        &page,
        &[
            "this node has no RDMA device",
            "This node has no NIC on the PCI or auxiliary bus.",
            "No pod has a rail now.",
            "Nothing is offered to kubelet.",
            "No device became unhealthy since",
        ],
    );
    let mut ethernet = nic(0);
    ethernet["hcas"] = json!([]);
    let page = Found::with(json!({"functions": [ethernet]})).page();
    has(
        &page,
        &["this node has no RDMA device", "ens1f0", "NUMA node 0"],
    );
}

/// Returns the offer of one device that the resource cannot use.
fn offer(resource: &str, device: &str, rdma: &str, fault: &str) -> Offer {
    let device = OfferedDevice {
        address: address(device),
        hca: serde_json::from_value(json!({"name": rdma})).expect("an RDMA device"),
        numa_node: None,
        path: PciPath::default(),
        data_direct: None,
        mac: None,
        parent: None,
        fault: Some(fault.into()),
    };
    Offer {
        name: ResourceName::new(resource).expect("a name"),
        kind: Ids::Exclusive,
        sharing: Sharing::Exclusive,
        devices: vec![device],
        ids: vec![],
        keeps_count: false,
        has_parents: false,
        cdi: false,
        umad: false,
        limits: Default::default(),
        environment: Environment::default(),
        expected: 1,
        short: None,
    }
}

#[test]
fn a_device_that_is_gone_from_two_resources_is_one_device() {
    let mut found = Found::with(json!({"functions": [nic(0)]}));
    let gone = Gone {
        address: address("0000:9d:00.0"),
        rdma: Some("mlx5_7".into()),
    };
    // this daemon has never offered the device in rdma/b
    let unnamed = Gone {
        rdma: None,
        ..gone.clone()
    };
    let of = |(resource, gone): (&str, &Gone)| (resource.to_owned(), vec![gone.clone()]);
    found.node.gone = [("rdma/a", &gone), ("rdma/b", &unnamed)].map(of).into();
    has(&found.page(), &["1 of 2 unhealthy", "mlx5_7"]);
}

#[test]
fn a_resource_of_claims_that_cannot_use_a_healthy_device_is_named() {
    let mut found = Found::with(json!({"functions": [nic(0)]}));
    let fault = "bond0.100 is down";
    let conf = "dra: {}\nresources: [{name: rdma/nic, kind: shared}]";
    let parsed = Conf::parse(conf, Path::new("config")).expect("a configuration");
    found.node.conf = Arc::new(parsed.conf);
    found.node.offers = vec![offer("rdma/nic", "0000:1a:00.0", "mlx5_0", fault)];
    has(&found.page(), &["mlx5_0 in rdma/nic", fault]);
}

#[test]
fn names_from_outside_are_text() {
    const HOSTILE: &str = "<script>alert(1)</script>\"'&";
    let mut device = nic(0);
    device["hcas"][0]["name"] = HOSTILE.into();
    device["hcas"][0]["firmware"] = HOSTILE.into();
    device["driver"] = HOSTILE.into();
    device["netdevs"][0]["name"] = HOSTILE.into();
    device["netdevs"][0]["master"] = HOSTILE.into();
    let mut virtual_one = function(0);
    virtual_one["hcas"][0]["name"] = HOSTILE.into();
    let mut found = Found::with(json!({"functions": [device.clone(), virtual_one]}));
    found.unhealthy("0000:1a:00.0", HOSTILE);
    found.unhealthy("0000:1a:01.0", HOSTILE);
    let mut hostile = pod(HOSTILE, &[device]);
    hostile.phase = HOSTILE.into();
    hostile.rails[0].name = HOSTILE.into();
    hostile.rails[0].host_netdev = Some(HOSTILE.into());
    found.rails = vec![hostile];
    let holder = Holder {
        resource: HOSTILE.into(),
        container: PodContainer {
            pod: PodName {
                namespace: HOSTILE.into(),
                name: HOSTILE.into(),
            },
            name: HOSTILE.into(),
        },
    };
    let holders = [(address("0000:1a:00.0"), [holder].into())];
    found.held.holders = holders.into();
    found.node.offers = vec![offer("rdma/hca", "0000:9e:00.0", HOSTILE, HOSTILE)];
    let gone = Gone {
        address: address("0000:9d:00.0"),
        rdma: Some(HOSTILE.into()),
    };
    found.node.gone = [(HOSTILE.to_owned(), vec![gone])].into();
    let now = UNIX_EPOCH;
    let history = found.metrics.history();
    history.follow(&found.node, now);
    history.line(true, HOSTILE, now);
    for chain in [
        ChainStatus::NotCalled(HOSTILE.into()),
        ChainStatus::Called(conflist::Called {
            file: HOSTILE.into(),
            network: HOSTILE.into(),
            by_others: true,
        }),
    ] {
        found.chain = chain;
        let page = found.page();
        assert!(!page.contains("<script"), "{page}");
        assert!(page.matches("&lt;script&gt;").count() > 15, "{page}");
        // in any text, up to the cut, the page escapes characters that end an attribute or begin an entity
        let end = "&lt;/script&gt;&quot;&#39;&amp;";
        assert!(page.matches(end).count() > 15, "{page}");
        for rest in page.split("alert(1)").skip(1) {
            let cut = rest.split_once('…').map(|(cut, _)| cut);
            let is_cut = cut.is_some_and(|it| end.starts_with(it));
            assert!(rest.starts_with(end) || is_cut, "{rest:.80}");
        }
    }
}

/// Each function is in a separate pod. The test renders the node with the physical function, and again without it.
#[test]
fn two_hundred_and_fifty_six_functions_stay_readable() {
    let functions: Vec<Value> = (0..256).map(function).collect();
    let with_nic: Vec<Value> = [nic(0)].into_iter().chain(functions.clone()).collect();
    for all in [with_nic, functions.clone()] {
        let mut found = Found::with(json!({"functions": all}));
        let pods = functions.iter().enumerate();
        found.rails = pods
            .map(|(place, it)| pod(&format!("team/train-{place}"), std::slice::from_ref(it)))
            .collect();
        found.unhealthy("0000:1a:01.0", "it has no RDMA device");
        let page = found.page();
        has(
            &page,
            &[
                "256 functions, 256 in pods, 1 unhealthy",
                "and 244 more pods, in the table below",
            ],
        );
        let of = |class: &str| page.matches(&format!("class=\"{class}\"")).count();
        assert_eq!((of("held"), of("pod")), (255, 12));
        assert!(page.len() < LARGEST / 2, "{} bytes", page.len());
    }
}

#[test]
fn a_page_is_bounded() {
    let mut functions = Vec::new();
    for number in 0..64 {
        let mut own = nic(number % 8);
        let pf = format!("0000:{number:02x}:00.0");
        own["address"] = pf.clone().into();
        functions.push(own);
        for place in 0..64 {
            let mut one = function(place);
            one["address"] =
                format!("0000:{number:02x}:{:02x}.{}", 1 + place / 8, place % 8).into();
            one["physical_function"] = pf.clone().into();
            functions.push(one);
        }
    }
    let mut found = Found::with(json!({"functions": functions}));
    for function in &found.node.inventory.functions {
        let address = function.device.address.clone();
        let why = "x".repeat(1000);
        found.node.unhealthy.insert(address, why);
    }
    let device = nic(0);
    let rails = || (0..10).map(|it| rail(it, &device));
    found.rails = (0..500)
        .map(|it| PodRails {
            pod: format!("{}/{it}", "n".repeat(1000)),
            phase: "attaching".into(),
            rails: rails().collect(),
        })
        .collect();
    let page = found.page();
    assert!(page.len() < LARGEST, "{} bytes", page.len());
}
