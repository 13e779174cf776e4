// SPDX-License-Identifier: Apache-2.0
//! Tests of `/`, `/metrics` and `/healthz` over HTTP, on a made-up sysfs, with a stand-in for kubelet's pod-resources.

mod browser;
mod crowd;
mod dashboard;
mod page;
mod panels;
mod pictures;
mod prometheus;
mod site;

use daemon_conf::Conf;
use integration::{stopwatch::Stopwatch, wait};
use node_state::node::Node;
use offer::Gone;
use rdma_device_plugin::metrics::View;
use rdma_resources::{
    Grants, LimitedContainers, RdmaLimits, Sharing,
    grant::{Grant, GrantedDevice},
    limited::{self, LimitedContainer},
};
use site::{Kubelet, Site, address, container, offer, pod};
use std::{fs, path::Path, time::Duration};

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_an_exclusive_device_say_whose_they_are() {
    let mut site = Site::new(vec![offer(
        "rdma/vf",
        Sharing::Exclusive,
        &[("0000:3b:00.2", &[0])],
    )]);
    site.kubelet(Kubelet::Answers(vec![pod(
        "team",
        "train-0",
        container("main", "rdma/vf", &["0000:3b:00.2"]),
    )]));
    let server = site.serve().await;
    let text = server.metrics().await;
    for line in [
        r#"rdma_port_rcv_data_bytes_total{device="mlx5_0",port="1",pod="train-0",namespace="team",container="main"} 1000"#,
        r#"rdma_hw_out_of_sequence_total{device="mlx5_0",port="1",pod="train-0",namespace="team",container="main"} 7"#,
        r#"rdma_port_state{device="mlx5_0",port="1"} 4"#,
        r#"rdma_device_holder{device="mlx5_0",resource="rdma/vf",pod="train-0",namespace="team",container="main"} 1"#,
        r#"rdma_device_info{device="mlx5_0",address="0000:3b:00.2",driver="mlx5_core",numa_node="1"} 1"#,
        r#"rdma_device_healthy{device="mlx5_0"} 1"#,
        r#"rdma_device_counters_known{device="mlx5_0"} 1"#,
        r#"rdma_device_plugin_capacity{resource="rdma/vf"} 1"#,
        r#"rdma_device_plugin_healthy{resource="rdma/vf"} 1"#,
        r#"rdma_device_plugin_allocated{resource="rdma/vf"} 1"#,
        r#"rdma_device_plugin_scrape_complete{part="holders"} 1"#,
        r#"rdma_device_plugin_scrape_complete{part="counters"} 1"#,
        // no pod has this device: its counter has no labels of a pod
        r#"rdma_port_rcv_data_bytes_total{device="mlx5_1",port="1"} 1000"#,
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in:\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

/// The counters are absent, as for a device inside a pod that the daemon may not enter.
#[tokio::test(flavor = "multi_thread")]
async fn counters_that_cannot_be_read_are_reported_as_unknown() {
    let offered = offer("rdma/vf", Sharing::Exclusive, &[("0000:3b:00.2", &[0])]);
    let site = Site::new(vec![offered]);
    let of_device = site.path().join("sys/class/infiniband/mlx5_0");
    fs::remove_dir_all(of_device).expect("moved");
    let text = site.serve().await.metrics().await;
    for line in [
        r#"rdma_device_counters_known{device="mlx5_0"} 0"#,
        r#"rdma_device_counters_known{device="mlx5_1"} 1"#,
        r#"rdma_device_plugin_scrape_complete{part="counters"} 1"#,
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in:\n{text}");
    }
    assert!(!text.contains(r#"{device="mlx5_0",port="#), "{text}");
}

/// A NIC that disappeared from its bus keeps its series `rdma_device_healthy`: an alert does not fire on a missing
/// series.
#[tokio::test(flavor = "multi_thread")]
async fn a_nic_that_fell_off_its_bus_is_not_healthy() {
    let mut offered = offer("rdma/hca", Sharing::Shared, &[("0", &[0, 1])]);
    offered.expected = 3;
    let mut site = Site::new(vec![offered]);
    let gone = |at: &str, rdma: Option<&str>| Gone {
        address: address(at),
        rdma: rdma.map(str::to_owned),
    };
    // another device has the last device's name now
    site.gone = vec![
        gone("0000:9d:00.0", Some("mlx5_2")),
        gone("0000:9e:00.0", None),
        gone("0000:9f:00.0", Some("mlx5_1")),
    ];
    let text = site.serve().await.metrics().await;
    for line in [
        r#"rdma_device_healthy{device="mlx5_1"} 1"#,
        r#"rdma_device_healthy{device="mlx5_2"} 0"#,
        r#"rdma_device_plugin_devices_expected{resource="rdma/hca"} 3"#,
        r#"rdma_device_plugin_devices_present{resource="rdma/hca"} 2"#,
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in:\n{text}");
    }
    let healthy = text
        .lines()
        .filter(|it| it.starts_with("rdma_device_healthy{"));
    assert_eq!(healthy.count(), 3, "{text}");
    // a node whose last device disappeared
    let mut site = Site::new(vec![]);
    site.gone = vec![gone("0000:9d:00.0", Some("mlx5_2"))];
    let text = site.serve().await.metrics().await;
    for line in [
        r#"rdma_device_plugin_devices_expected{resource="rdma/hca"} 1"#,
        r#"rdma_device_plugin_devices_present{resource="rdma/hca"} 0"#,
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in:\n{text}");
    }
}

/// The only device of a resource that requires two devices disappeared, or the node never had a device. The alert
/// `RdmaDevicesMissing` needs both series.
#[tokio::test(flavor = "multi_thread")]
async fn a_resource_without_devices_is_still_expected_to_have_the_required_number() {
    for (require, has_gone, expected) in [
        ("2", true, Some(2)),
        ("2", false, Some(2)),
        ("all", true, Some(1)),
        ("all", false, None),
    ] {
        let text = format!("resources: [{{name: rdma/hca, kind: shared, require: {require}}}]");
        let parsed = Conf::parse(&text, Path::new("config")).expect("a configuration");
        let gone = has_gone.then(|| Gone {
            address: address("0000:9d:00.0"),
            rdma: None,
        });
        let gone = gone.map(|gone| ("rdma/hca".to_owned(), vec![gone]));
        let mut site = Site::new(vec![]);
        let node = Node {
            conf: parsed.conf.into(),
            gone: gone.into_iter().collect(),
            ..Node::default()
        };
        site.view = Some(View {
            node: node.into(),
            ..View::default()
        });
        let text = site.serve().await.metrics().await;
        let line = |name: &str, count: u32| {
            format!(r#"rdma_device_plugin_devices_{name}{{resource="rdma/hca"}} {count}"#)
        };
        let lines = expected.map(|it| [line("expected", it), line("present", 0)]);
        let found = text
            .lines()
            .filter(|it| it.starts_with("rdma_device_plugin_devices_"));
        assert_eq!(
            found.collect::<Vec<_>>(),
            lines.iter().flatten().collect::<Vec<_>>(),
            "{require}, {has_gone}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_device_has_its_counters_once_and_holders_as_many_as_there_are() {
    let both = &[("0", &[0, 1][..]), ("1", &[0, 1]), ("2", &[0, 1])];
    let mut site = Site::new(vec![offer("rdma/hca", Sharing::Shared, both)]);
    site.kubelet(Kubelet::Answers(vec![
        pod("team", "a", container("main", "rdma/hca", &["0"])),
        pod("team", "b", container("main", "rdma/hca", &["1"])),
        pod("team", "c", container("main", "other/thing", &["2"])),
    ]));
    // the grant decides which devices the id has: only one of the two
    let granted = Grant {
        format: rdma_resources::grant::FORMAT,
        resource: "rdma/hca".into(),
        id: "1".into(),
        sharing: Sharing::Shared,
        cdi: false,
        chained: false,
        promises_rails: false,
        limits: Default::default(),
        devices: vec![GrantedDevice {
            address: address("0000:5e:00.0"),
            rdma: "mlx5_1".into(),
            parent: None,
            char_devices: vec![],
        }],
    };
    Grants::new(site.path()).write(&granted).expect("written");
    let text = site.serve().await.metrics().await;
    let of = |metric: &str| text.lines().filter(|line| line.starts_with(metric)).count();
    assert_eq!(
        of("rdma_port_rcv_data_bytes_total{device=\"mlx5_1\""),
        1,
        "{text}"
    );
    assert_eq!(of("rdma_device_holder{device=\"mlx5_0\""), 1, "{text}");
    assert_eq!(of("rdma_device_holder{device=\"mlx5_1\""), 2, "{text}");
    assert!(!text.contains("pod=\"c\""), "{text}");
    assert!(text.contains("rdma_device_plugin_allocated{resource=\"rdma/hca\"} 2\n"));
    assert!(text.contains("rdma_port_rcv_data_bytes_total{device=\"mlx5_1\",port=\"1\"} 1000\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemons_work_is_counted() {
    let site = Site::new(vec![]);
    let metrics = site.metrics.clone();
    metrics.registered("rdma/hca", true);
    metrics.registered("rdma/hca", false);
    metrics.registered("rdma/gone", true);
    metrics.withdrawn("rdma/gone");
    metrics.listed("rdma/hca");
    metrics.reloaded(false);
    metrics.allocated("rdma/hca", Duration::from_millis(3), true);
    let text = site.serve().await.metrics().await;
    for line in [
        r#"rdma_device_plugin_registrations_total{resource="rdma/hca",outcome="ok"} 1"#,
        r#"rdma_device_plugin_registrations_total{resource="rdma/hca",outcome="error"} 1"#,
        r#"rdma_device_plugin_registered{resource="rdma/hca"} 0"#,
        r#"rdma_device_plugin_list_updates_total{resource="rdma/hca"} 1"#,
        r#"rdma_device_plugin_reloads_total{outcome="error"} 1"#,
        r#"rdma_device_plugin_allocate_seconds_count{resource="rdma/hca",outcome="ok"} 1"#,
        r#"rdma_device_plugin_allocate_seconds_bucket{le="0.0025",resource="rdma/hca",outcome="ok"} 0"#,
        r#"rdma_device_plugin_allocate_seconds_bucket{le="0.005",resource="rdma/hca",outcome="ok"} 1"#,
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in:\n{text}");
    }
    assert!(!text.contains("rdma/gone"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_never_answers_costs_two_seconds_and_who_has_what() {
    let mut site = Site::new(vec![offer(
        "rdma/vf",
        Sharing::Exclusive,
        &[("0000:3b:00.2", &[0])],
    )]);
    site.kubelet(Kubelet::Hangs);
    let server = site.serve().await;
    let begin = Stopwatch::start();
    let (one, other) = tokio::join!(server.metrics(), server.metrics());
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "{:?}",
        begin.elapsed()
    );
    for text in [one, other] {
        assert!(
            text.contains("scrape_complete{part=\"holders\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains("scrape_complete{part=\"counters\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("rcv_data_bytes_total{device=\"mlx5_0\",port=\"1\"} 1000\n"));
        assert!(!text.contains("plugin_allocated{"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_cannot_be_read_costs_two_seconds_and_the_counters() {
    let site = Site::new(vec![]);
    // reading a FIFO without a writer never ends
    let fifo = site
        .path()
        .join("sys/class/infiniband/mlx5_0/ports/1/counters/stuck");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).expect("a FIFO");
    let server = site.serve().await;
    for _ in 0..2 {
        let begin = Stopwatch::start();
        let text = server.metrics().await;
        assert!(
            begin.elapsed() < Duration::from_secs(4),
            "{:?}",
            begin.elapsed()
        );
        assert!(
            text.contains("scrape_complete{part=\"counters\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains("rdma_device_info{device=\"mlx5_0\""),
            "{text}"
        );
    }
    // other tests of this process can have threads of the same name, which end by themselves
    wait::until("no scrape but the first has left a thread behind", || {
        site.threads_called("counters") <= 1
    });
    std::fs::OpenOptions::new()
        .write(true)
        .open(&fifo)
        .expect("the reader goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_reported_in_words() {
    let site = Site::new(vec![offer(
        "rdma/vf",
        Sharing::Exclusive,
        &[("0000:3b:00.2", &[0])],
    )]);
    let server = site.serve().await;
    let (status, words) = server.get("GET", "/healthz").await;
    assert_eq!(
        (status, words.as_str()),
        (200, "kubelet's socket is missing; waiting for it\n")
    );
    site.make_kubelet_socket();
    // the plugin has some time to register
    assert_eq!(server.get("GET", "/healthz").await.0, 200);
    site.metrics.registered("rdma/vf", true);
    let (status, words) = server.get("GET", "/healthz").await;
    assert_eq!((status, words.as_str()), (200, "ok: 1 resources\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_else_is_there() {
    let server = Site::new(vec![]).serve().await;
    for (method, path, status) in [
        ("GET", "/page", 404),
        ("GET", "/metrics/", 404),
        ("POST", "/", 405),
        ("HEAD", "/", 200),
        ("POST", "/metrics", 405),
        ("HEAD", "/metrics", 200),
        ("GET", "/metrics?name=x", 200),
    ] {
        assert_eq!(server.get(method, path).await.0, status, "{method} {path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_do_not_pile_up() {
    let server = Site::new(vec![]).serve().await;
    let mut idle = Vec::new();
    for _ in 0..40 {
        idle.push(server.connect().await);
    }
    // the server closes silent connections, and then answers the scrape
    let begin = Stopwatch::start();
    let text = server.metrics().await;
    assert!(text.ends_with("# EOF\n"));
    assert!(
        begin.elapsed() < Duration::from_secs(8),
        "{:?}",
        begin.elapsed()
    );
}

/// The metrics show the state of SMC in the records of `rdma-cni`.
#[tokio::test(flavor = "multi_thread")]
async fn whether_pods_have_smc() {
    let site = Site::new(vec![]);
    let boot_id = rdma_netns::Kernel::boot_id(&rdma_netns::Linux::new()).expect("a boot id");
    let directory = site.path().join("attachments/rails");
    std::fs::create_dir_all(&directory).expect("made");
    let long = "x".repeat(1000);
    for (pod, smc) in [
        (
            "a",
            serde_json::json!({"state": "active", "interfaces": []}),
        ),
        ("b", serde_json::json!({"state": "off", "reason": long})),
        ("c", serde_json::Value::Null),
    ] {
        let record = serde_json::json!({
            "format": 9, "phase": "attached", "bootId": boot_id, "pod": format!("team/{pod}"),
            "key": {"network": "rails", "container": pod, "interface": "eth0"},
            "netns": "/run/netns/none", "netnsId": {"device": 4, "inode": 77, "cookie": 9},
            "dad": "off", "acceptRa": false, "rails": [], "smc": smc, "config": {},
        });
        let file = directory.join(format!("{pod}@eth0.json"));
        std::fs::write(file, record.to_string()).expect("written");
    }
    let text = site.serve().await.metrics().await;
    let lines: Vec<&str> = text
        .lines()
        .filter(|it| it.starts_with("rdma_pod_smcr{"))
        .collect();
    let off = format!(
        r#"rdma_pod_smcr{{namespace="team",pod="b",state="off",reason="{}"}} 1"#,
        &long[..200]
    );
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines.contains(&r#"rdma_pod_smcr{namespace="team",pod="a",state="active"} 1"#));
    assert!(lines.contains(&off.as_str()), "{lines:?}");
}

/// Files stand in for the kernel's rdma controller.
#[tokio::test(flavor = "multi_thread")]
async fn pods_with_limits_show_their_use() {
    let site = Site::new(vec![]);
    let cgroups = site.path().join("sys/fs/cgroup");
    let write = |file: &str, text: &str| {
        let path = cgroups.join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    };
    for file in [
        "cgroup.controllers",
        "cgroup.subtree_control",
        "kubepods.slice/cgroup.subtree_control",
    ] {
        write(file, "rdma\n");
    }
    let containers = LimitedContainers::new(site.path(), &cgroups);
    for (pod, id) in [("lives", "one"), ("lives", "two"), ("left", "three")] {
        let container = LimitedContainer {
            format: limited::FORMAT,
            boot_id: limited::boot_id().expect("a boot"),
            namespace: "team".into(),
            pod: pod.into(),
            cgroup: Path::new("kubepods.slice").join(pod).join(id),
            pod_cgroup: Path::new("kubepods.slice").join(pod),
            limits: RdmaLimits::default(),
        };
        let file = |name: &str| format!("kubepods.slice/{pod}/{name}");
        write(
            &file("rdma.current"),
            "mlx5_0 hca_handle=2 hca_object=17 \n",
        );
        write(&file("rdma.max"), "mlx5_0 hca_handle=max hca_object=100 \n");
        write(&file(&format!("{id}/cgroup.events")), "populated 1\n");
        containers.limit(id, &container).expect("limited");
    }
    fs::remove_dir_all(cgroups.join("kubepods.slice/left")).expect("removed");
    let text = site.serve().await.metrics().await;
    let lines = text.lines();
    let mut lines: Vec<&str> = lines.filter(|it| it.starts_with("rdma_pod_")).collect();
    lines.sort_unstable();
    // other resources of the controller have no limit
    let labels = r#"{device="mlx5_0",pod="lives",namespace="team"}"#;
    let expected = [
        r#"rdma_pod_limits_left{pod="left",namespace="team"} 1"#.to_owned(),
        format!("rdma_pod_objects_limit{labels} 100"),
        format!("rdma_pod_objects{labels} 17"),
    ];
    assert_eq!(lines, expected);
}
