// SPDX-License-Identifier: Apache-2.0
//! Tests with a real Prometheus, which scrapes the metrics according to the chart's PodMonitor, and evaluates the
//! alerts and the dashboard's panels. The labels of discovered pods, which need Kubernetes, are fixed values.

use crate::site::{Kubelet, Site, container, offer, pod};
use integration::{Daemon, Machine, kubelet::DeviceManager, machine::Nic};
use nix::sys::signal::Signal;
use rdma_resources::Sharing;
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) const NODE: &str = "node-1";

/// Port of the rendered PodMonitor. The tests replace it by the server's own port.
const PORT: &str = "9102";

/// Counters that panels show, in addition to those of the site.
const COUNTERS: [&str; 8] = [
    "counters/port_xmit_data",
    "counters/port_xmit_discards",
    "counters/port_rcv_errors",
    "counters/symbol_error",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/np_cnp_sent",
    "hw_counters/packet_seq_err",
    "hw_counters/rp_cnp_handled",
];

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn programs() -> PathBuf {
    let directory = std::env::var_os("RDMA_PROMETHEUS");
    directory
        .expect(
            "RDMA_PROMETHEUS is not set: export RDMA_PROMETHEUS=$(integration/prometheus/fetch)",
        )
        .into()
}

/// Returns the `scrape_configs` that Prometheus' operator makes of the PodMonitor, for a server on `port` and further
/// discovered pods.
fn scrape_config(port: u16) -> Value {
    let rendered = root().join("integration/manifests/rendered/monitoring.yaml");
    let text = fs::read_to_string(rendered).expect("rendered");
    let text = text.replace(PORT, &port.to_string());
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let monitor = objects.iter().find(|it| it["kind"] == "PodMonitor");
    let endpoint = &monitor.expect("a PodMonitor")["spec"]["podMetricsEndpoints"][0];
    // rules that the operator adds before the rules of the PodMonitor
    let mut relabelings = vec![
        json!({"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"}),
        json!({"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"}),
        json!({"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"}),
        json!({"source_labels": ["__meta_kubernetes_pod_label_app_kubernetes_io_name"], "target_label": "job"}),
    ];
    for relabeling in endpoint["relabelings"].as_array().expect("a list") {
        let fields = relabeling.as_object().expect("an object").iter();
        let in_snake_case = |(name, value): (&String, &Value)| {
            let name = name
                .replace("sourceLabels", "source_labels")
                .replace("targetLabel", "target_label");
            (name, value.clone())
        };
        relabelings.push(Value::Object(fields.map(in_snake_case).collect()));
    }
    let discovered = |ip: &str, node: &str, container: &str| {
        json!({
            "targets": [ip],
            "labels": {
                "__meta_kubernetes_namespace": "kube-system",
                "__meta_kubernetes_pod_name": "ack-rdma-dp-ds-x7k2p",
                "__meta_kubernetes_pod_container_name": container,
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": "rdma-device-plugin",
                "__meta_kubernetes_pod_ip": ip,
                "__meta_kubernetes_pod_node_name": node,
            },
        })
    };
    json!({
        "job_name": "podMonitor/kube-system/rdma-device-plugin/0",
        "honor_labels": endpoint["honorLabels"],
        "scrape_interval": "1s",
        "scrape_timeout": "1s",
        "relabel_configs": relabelings,
        "static_configs": [
            discovered("127.0.0.1", NODE, "rdma-device-plugin"),
            discovered("127.0.0.1", NODE, "install"),
            discovered("2001:db8::7", "node-2", "rdma-device-plugin"),
        ],
    })
}

pub(crate) struct Prometheus {
    process: Child,
    port: u16,
    _storage: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Prometheus {
    fn start(port: u16) -> Self {
        let configuration = json!({
            "global": {"evaluation_interval": "1s"},
            "rule_files": [root().join("conf/helm/rdma-device-plugin/files/alerts.yaml")],
            "scrape_configs": [scrape_config(port)],
        });
        let storage = tempfile::tempdir().expect("a directory");
        Self::with(storage, &configuration)
    }

    pub(crate) fn with(storage: tempfile::TempDir, configuration: &Value) -> Self {
        let file = storage.path().join("prometheus.yml");
        fs::write(&file, configuration.to_string()).expect("written");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let log = fs::File::create(storage.path().join("log")).expect("a file");
        let process = Command::new(programs().join("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", storage.path().display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("started");
        Self {
            process,
            port,
            _storage: storage,
        }
    }

    /// Returns the answer of Prometheus' API. `None`: Prometheus does not answer yet.
    pub(crate) async fn api(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))
            .await
            .ok()?;
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let answer: Value = serde_json::from_str(body).ok()?;
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        Some(answer["data"].clone())
    }

    async fn query(&self, expression: &str) -> Vec<Value> {
        let path = format!("query?query={}", in_address(expression));
        let data = self.api(&path).await;
        data.map_or_else(Vec::new, |it| {
            it["result"].as_array().expect("a list").clone()
        })
    }

    async fn until(&self, expression: &str) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.query(expression).await;
            if !found.is_empty() {
                return found;
            }
            assert!(Instant::now() < until, "nothing within 60 s: {expression}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

pub(crate) fn in_address(expression: &str) -> String {
    let bytes = expression.bytes().map(|byte| format!("%{byte:02x}"));
    bytes.collect()
}

pub(crate) fn panels() -> Vec<Value> {
    let file = root().join("conf/helm/rdma-device-plugin/files/dashboard.json");
    let text = fs::read_to_string(file).expect("a dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    dashboard["panels"].as_array().expect("panels").clone()
}

/// Returns a target's expression, with values for the dashboard's variables.
pub(crate) fn expression(target: &Value, rate_interval: &str) -> String {
    let expression = target["expr"].as_str().expect("an expression");
    let expression = expression.replace("$node", ".*");
    expression.replace("$__rate_interval", rate_interval)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "scripts/test --full: it needs Prometheus"]
async fn prometheus_reads_it_and_alerts_and_panels_are_answered() {
    let offered = offer("rdma/vf", Sharing::Exclusive, &[("0000:3b:00.2", &[0])]);
    let mut site = Site::new(vec![offered]);
    site.kubelet(Kubelet::Answers(vec![pod(
        "team",
        "train-0",
        container("main", "rdma/vf", &["0000:3b:00.2"]),
    )]));
    for counter in COUNTERS {
        let port = site.path().join("sys/class/infiniband/mlx5_0/ports/1");
        fs::write(port.join(counter), "3\n").expect("written");
    }
    site.metrics.registered("rdma/vf", false);
    let took = Duration::from_millis(3);
    site.metrics.allocated("rdma/vf", took, true);
    site.metrics.prepared(took, true);
    let server = site.serve().await;
    let prometheus = Prometheus::start(server.port());

    // rates need two scrapes
    let scraped = format!("count_over_time(rdma_device_healthy{{node=\"{NODE}\"}}[1m]) > 1");
    prometheus.until(&scraped).await;
    let targets = prometheus.api("targets").await.expect("an answer");
    let urls = targets["activeTargets"].as_array().expect("a list").iter();
    let urls: BTreeSet<&str> = urls.filter_map(|it| it["scrapeUrl"].as_str()).collect();
    let port = server.port();
    let expected = [
        format!("http://127.0.0.1:{port}/metrics"),
        format!("http://[2001:db8::7]:{port}/metrics"),
    ];
    assert!(urls.into_iter().eq(expected.iter().map(String::as_str)));

    let healthy = prometheus.query("rdma_device_healthy").await;
    let labels = healthy[0]["metric"].as_object().expect("labels");
    let names: Vec<&str> = labels.keys().map(String::as_str).collect();
    assert_eq!(names, ["__name__", "device", "instance", "job", "node"]);
    assert_eq!(labels["instance"], NODE);
    let holder = &prometheus.query("rdma_device_holder").await[0]["metric"];
    assert_eq!(
        (&holder["namespace"], &holder["pod"], &holder["container"]),
        (&json!("team"), &json!("train-0"), &json!("main"))
    );

    for panel in panels() {
        for target in panel["targets"].as_array().expect("targets") {
            prometheus.until(&expression(target, "1m")).await;
        }
    }
    for alert in [
        r#"alertname="RdmaDaemonDown", node="node-2""#,
        r#"alertname="RdmaKubeletDoesNotKnowResource", node="node-1", resource="rdma/vf""#,
    ] {
        prometheus
            .until(&format!("ALERTS{{alertstate=\"pending\", {alert}}}"))
            .await;
    }
}

/// Scrapes the daemon itself, from its start to its end.
#[test]
#[ignore = "scripts/test --full: it needs Prometheus"]
fn prometheus_reads_the_daemon_and_hears_of_its_end() {
    let machine = Machine::with(&[Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1",
        numa_node: 0,
        number: 0,
    }]);
    machine.configure(r#"{"mode":"hca"}"#);
    let kubelet = DeviceManager::started(&machine.path("kubelet"));
    let program = env!("CARGO_BIN_EXE_rdma-device-plugin");
    let mut command = machine.command(program.as_ref());
    command.args(["--metrics-address", "127.0.0.1:0"]);
    let daemon = Daemon::start(&mut command);
    kubelet.wait_for("rdma/hca", "its list", |it| it.healthy().len() == 1000);
    let line = daemon.line("metrics are at http://127.0.0.1:");
    let port = line.split("127.0.0.1:").nth(1).expect("a port");
    let port = port.split('/').next().and_then(|it| it.parse().ok());
    let prometheus = Prometheus::start(port.expect("a number"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let until = |expression: &str| runtime.block_on(prometheus.until(expression));
    for expression in [
        format!("up{{job=\"rdma-device-plugin\", node=\"{NODE}\"}} == 1"),
        format!("rdma_device_healthy{{device=\"mlx5_0\", node=\"{NODE}\"}} == 1"),
        "rdma_device_plugin_healthy{resource=\"rdma/hca\"} == 1000".to_owned(),
        "rdma_device_plugin_registered{resource=\"rdma/hca\"} == 1".to_owned(),
    ] {
        until(&expression);
    }
    let of_node = format!("ALERTS{{alertname=~\"RdmaDaemon.*\", node=\"{NODE}\"}}");
    assert_eq!(
        runtime.block_on(prometheus.query(&of_node)),
        [] as [Value; 0]
    );
    daemon.end(Signal::SIGTERM);
    until(&of_node);
    let down = format!("up{{node=\"{NODE}\"}} == 0");
    until(&down);
}

/// `promtool` reports an alert that did not fire, or that fired when it should not.
#[test]
#[ignore = "scripts/test --full: it needs promtool"]
fn alerts_come_when_they_should_and_only_then() {
    let cases = root().join("integration/prometheus/alerts.yaml");
    let output = Command::new(programs().join("promtool"))
        .args(["test", "rules"])
        .arg(&cases)
        .output()
        .expect("promtool");
    let printed = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&printed)
    );
}
