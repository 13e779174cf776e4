// SPDX-License-Identifier: Apache-2.0
//! Tests of the page at `/`, as served and as a real browser draws it.

use crate::browser::{Browser, size};
use crate::pictures::{page_at_rest, update};
use crate::site::{Client, Kubelet, Site, address, container, devices, offer, pod};
use node_state::node::Node;
use offer::Unhealthy;
use rdma_device_plugin::{chain::ChainStatus, metrics::View};
use rdma_netns::{Inventory, Kernel, Linux};
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::{
    fs,
    sync::Arc,
    time::{Duration, SystemTime},
};

/// Width of the picture in pixels.
const WIDTH: u32 = 1280;
const HEIGHT: u32 = 1572;

/// Index of the unhealthy NIC among the eight NICs on two NUMA nodes.
const UNHEALTHY: usize = 6;

fn pci(nic: usize) -> String {
    format!("0000:{:02x}:00.0", 0x1a + nic * 0x11)
}

/// Returns a node with eight NICs and two pods that share them. One NIC has lost its carrier.
pub(crate) fn eight_nics() -> Site {
    let nics = (0..8).map(|nic| {
        let is_up = nic != UNHEALTHY;
        json!({
            "address": pci(nic), "driver": "mlx5_core", "numa_node": nic / 4,
            "netdevs": [{"name": format!("ens{}f0", nic + 1), "mac": "94:6d:ae:00:00:10", "carrier": is_up,
                         "mtu": 4200, "speed": is_up.then_some(400_000)}],
            "hcas": [{"name": format!("mlx5_{nic}"), "firmware": "28.43.2026",
                      "ports": [{"number": 1, "state": if is_up { 4 } else { 1 }, "link_type": "ether"}]}],
        })
    });
    let storage = json!({
        "address": "0000:01:00.0", "driver": "ice", "numa_node": 0,
        "netdevs": [{"name": "eno1", "mac": "94:6d:ae:00:00:90", "carrier": true, "speed": 25_000}],
    });
    let accelerators = (0..8).map(|it| {
        json!({"address": format!("0000:{:02x}:00.0", 0x1b + it * 0x11), "vendor": "10de", "numa_node": it / 4})
    });
    let functions: Vec<Value> = nics.chain([storage]).collect();
    let accelerators: Vec<Value> = accelerators.collect();
    let manager = json!({"name": "rdma_cm", "major": 10, "minor": 123, "node": [10, 123]});
    let inventory = json!({
        "functions": functions, "accelerators": accelerators, "connection_manager": manager,
    });
    let inventory: Inventory = serde_json::from_value(inventory).expect("an inventory");
    let all: Vec<usize> = (0..8).collect();
    let mut offered = offer("rdma/hca", Sharing::Shared, &[("0", &all), ("1", &all)]);
    offered.devices = devices(all.iter().map(|nic| pci(*nic)));
    offered.expected = 8;
    let unhealthy = [(address(&pci(UNHEALTHY)), "ens7f0 has no carrier".to_owned())];
    offered.devices[UNHEALTHY].fault = Some(unhealthy[0].1.clone());
    let mut site = Site::new(vec![]);
    site.metrics.registered("rdma/hca", true);
    site.metrics.listed("rdma/hca");
    site.metrics.settled("rdma/hca");
    site.make_kubelet_socket();
    let history = site.metrics.history();
    let ago = |seconds| SystemTime::now() - Duration::from_secs(seconds);
    let flap = [(address(&pci(1)), "ens2f0 has no carrier".to_owned())];
    let inventory = Arc::new(inventory);
    let node = |unhealthy: Unhealthy| Node {
        inventory: inventory.clone(),
        unhealthy,
        ..Node::default()
    };
    let follow = |unhealthy: Unhealthy, at| history.follow(&node(unhealthy), at);
    follow(flap.into(), ago(7_300));
    follow([].into(), ago(7_290));
    follow(unhealthy.clone().into(), ago(320));
    history.line(
        false,
        "mlx5_6 is unhealthy: ens7f0 has no carrier",
        ago(320),
    );
    let refused = "claims are not reported: the API server does not answer within 5 s";
    history.line(true, refused, ago(90));
    history.line(true, refused, ago(30));
    site.view = Some(View {
        node: Arc::new(Node {
            offers: vec![offered],
            ..node(unhealthy.into())
        }),
        chain: ChainStatus::Called(conflist::Called {
            file: "10-containerd-net.conflist".into(),
            network: "containerd-net".into(),
            by_others: false,
        }),
    });
    site.kubelet(Kubelet::Answers(vec![
        pod("team", "trainer-0", container("main", "rdma/hca", &["0"])),
        pod("team", "trainer-1", container("main", "rdma/hca", &["1"])),
    ]));
    for (number, name) in ["trainer-0", "trainer-1"].into_iter().enumerate() {
        attach(&site, name, number);
    }
    site
}

/// Writes the record of a pod that has a child netdev on each NIC.
fn attach(site: &Site, name: &str, number: usize) {
    let boot_id = Linux::new().boot_id().expect("a boot id");
    let rails = (0..8).map(|rail| {
        let ip = format!(
            "fd00:c{rail}::5d4a:{:x}:3181:{:x}",
            0x4783 + number,
            0x9807 + rail
        );
        json!({
            "podName": format!("rdma{rail}"),
            "shared": {
                "parent": format!("ens{}f0", rail + 1), "parentIndex": 7 + rail, "parentMtu": 4200,
                "device": pci(rail), "child": {"type": "macvlan", "mode": "bridge"},
            },
            "rdma": {
                "name": format!("mlx5_{rail}"), "index": rail, "node_guid": "", "parent": pci(rail),
            },
            "given": {"addresses": [{"ip": ip, "prefix": 64}], "routes": []},
            "gids": [{"address": ip, "gid": ip, "port": 1, "index": 6 + number}],
        })
    });
    let rails: Vec<Value> = rails.collect();
    let record = json!({
        "format": 9, "phase": "attached", "bootId": boot_id, "pod": format!("team/{name}"),
        "key": {"network": "rails", "container": name, "interface": "eth0"},
        "netns": "/run/netns/none", "netnsId": {"device": 4, "inode": 77 + number, "cookie": 9},
        "dad": "off", "acceptRa": false, "rails": rails, "config": {},
    });
    let directory = site.path().join("attachments/rails");
    fs::create_dir_all(&directory).expect("made");
    let file = directory.join(format!("{name}@eth0.json"));
    fs::write(file, record.to_string()).expect("written");
}

/// Texts that the page of [`eight_nics`] must show.
const SHOWN: [&str; 12] = [
    "RDMA on node-1",
    "NUMA node 0",
    "NUMA node 1",
    "mlx5_7",
    "up, 400 Gbit/s",
    "up, 25 Gbit/s",
    "1 of 8 unhealthy",
    "ens7f0 has no carrier",
    "team/trainer-1",
    "fd00:c7::5d4a:4784:3181:980e",
    "GID 7",
    "the runtime calls rdma-cni for network containerd-net",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_nics_pods_and_rails() {
    let site = eight_nics();
    let server = site.serve().await;
    let (head, page) = server.answer("GET", "/").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    for line in [
        "content-type: text/html; charset=utf-8",
        "content-security-policy: default-src 'none'; style-src 'unsafe-inline'",
        "cache-control: no-store",
    ] {
        assert!(head.lines().any(|it| it == line), "no {line} in:\n{head}");
    }
    for text in SHOWN {
        assert!(page.contains(text), "no {text} in:\n{page}");
    }
    assert_eq!(page.matches("class=\"line ").count(), 16);
    assert_eq!(page.matches("class=\"line bad\"").count(), 2);
    assert!(
        page.contains(
            "claims are not reported: the API server does not answer within 5 s (2 times)"
        )
    );
    for loaded in ["<script", "src=", "url(", "@import", "http:", "https:"] {
        assert!(!page.contains(loaded), "{loaded} in:\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_reports_that_kubelet_does_not_answer() {
    let mut site = Site::new(vec![]);
    site.kubelet(Kubelet::Hangs);
    let server = site.serve().await;
    let (status, page) = server.get("GET", "/").await;
    assert_eq!(status, 200);
    let sentence = "Kubelet did not report which container has which device.";
    assert!(page.contains(sentence), "{page}");
    assert!(page.contains("mlx5_1"), "{page}");
}

fn url(server: &Client) -> String {
    format!("http://127.0.0.1:{}/", server.port())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "scripts/test --full: it needs Chromium"]
async fn a_browser_draws_the_page() {
    let site = eight_nics();
    let server = site.serve().await;
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();

    let browser = Browser {
        directory: at,
        width: WIDTH,
        height: HEIGHT,
    };
    let dom = browser.run(&["--dump-dom", &url(&server)]);
    for text in SHOWN {
        assert!(dom.contains(text), "no {text} in:\n{dom}");
    }
    // the numbers differ if the browser had to close an element itself
    let (_, page) = server.answer("GET", "/").await;
    for element in [
        "<section", "<svg", "<table", "<tr", "<td", "<text", "<path", "</main>",
    ] {
        let [drawn, sent] = [&dom, &page].map(|it| it.matches(element).count());
        assert_eq!(drawn, sent, "{element}");
    }

    let [light, dark] = [false, true].map(|is_dark| browser.picture(&url(&server), is_dark));
    let blank = browser.picture("about:blank", false);
    for png in [&light, &dark, &blank] {
        assert_eq!(size(png), (WIDTH, HEIGHT));
    }
    for png in [&light, &dark] {
        assert!(png.len() > 10 * blank.len(), "{} bytes", png.len());
    }
    assert_ne!(light, dark);
    update("page.png", &light, &page_at_rest(&page));
}
