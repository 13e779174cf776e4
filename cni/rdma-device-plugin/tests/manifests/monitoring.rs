// SPDX-License-Identifier: Apache-2.0
//! Tests of the objects for Prometheus' operator and Grafana. The tests of the metrics run a real Prometheus, which
//! must evaluate the alerts and panels.

use crate::{cluster::cluster, documents, fabric, root, wanted::ALL};
use regex_lite::Regex;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs};

pub(crate) const FILE: &str = "integration/manifests/rendered/monitoring.yaml";

const FILES: &str = "conf/helm/rdma-device-plugin/files";

fn text(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn object(kind: &str) -> Value {
    let objects = cluster(FILE).others;
    let found = objects.into_iter().find(|it| it["kind"] == kind);
    found.unwrap_or_else(|| panic!("a {kind}"))
}

fn alerts() -> Vec<Value> {
    let [file] = documents(&root().join(FILES).join("alerts.yaml"))
        .try_into()
        .expect("one document");
    let rules = file["groups"][0]["rules"].as_array().expect("rules");
    rules.clone()
}

#[test]
fn there_are_monitoring_objects_only_if_enabled() {
    for wanted in ALL {
        let others = cluster(wanted.file).others;
        let is_watched = |it: &Value| {
            it["apiVersion"] == "monitoring.coreos.com/v1" || it["kind"] == "ConfigMap"
        };
        let expected = match wanted.file {
            FILE => 3,
            // the PodMonitors of the daemon and of the fabric watch
            fabric::FILE => 2,
            _ => 0,
        };
        let watched = others.iter().filter(|it| is_watched(it)).count();
        assert_eq!(watched, expected, "{}", wanted.file);
    }
}

#[test]
fn the_chart_gives_the_files_as_they_are() {
    assert_eq!(
        object("PrometheusRule")["spec"]["groups"][0]["rules"],
        json!(alerts())
    );
    let dashboard = &object("ConfigMap")["data"]["rdma-device-plugin.json"];
    let dashboard: Value = serde_json::from_str(dashboard.as_str().expect("a text")).expect("JSON");
    let file: Value =
        serde_json::from_str(&text(&format!("{FILES}/dashboard.json"))).expect("JSON");
    assert_eq!(dashboard, file);
    for kind in ["PodMonitor", "PrometheusRule", "ConfigMap"] {
        assert_eq!(object(kind)["metadata"]["labels"]["release"], "prometheus");
    }
}

/// `docs/observability.md` has each alert, and each metric that an alert or a panel queries. Counters of ports are
/// exempt: their names are the kernel's.
#[test]
fn queried_metrics_are_on_the_page() {
    let page = text("docs/observability.md");
    let queries = text(&format!("{FILES}/alerts.yaml")) + &text(&format!("{FILES}/dashboard.json"));
    let names = Regex::new("rdma_[a-z0-9_]+").expect("a pattern");
    let names: BTreeSet<&str> = names.find_iter(&queries).map(|it| it.as_str()).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let is_counter = ["rdma_port_", "rdma_hw_"]
            .iter()
            .any(|it| name.starts_with(it))
            && name.ends_with("_total");
        let name = name.trim_end_matches("_bucket");
        assert!(
            is_counter || page.contains(&format!("| `{name}` |")),
            "{name} is not on the page"
        );
    }
    for alert in alerts() {
        let name = alert["alert"].as_str().expect("a name");
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// Each alert has a case in which it fires, and a case in which it does not fire.
#[test]
fn each_alert_is_tested() {
    let [cases] = documents(&root().join("integration/prometheus/alerts.yaml"))
        .try_into()
        .expect("one document");
    for alert in alerts() {
        let tests = cases["tests"].as_array().expect("tests").iter();
        let checks = tests.flat_map(|it| it["alert_rule_test"].as_array().expect("checks"));
        let of_it = checks.filter(|it| it["alertname"] == alert["alert"]);
        let counts: Vec<usize> = of_it
            .map(|it| it["exp_alerts"].as_array().map_or(0, Vec::len))
            .collect();
        // further cases are allowed
        let (first, _) = counts.split_at(counts.len().min(2));
        assert!(
            matches!(first, [0, fires] if *fires > 0),
            "{}: {first:?}",
            alert["alert"]
        );
    }
}
