// SPDX-License-Identifier: Apache-2.0
//! Test of the chart's dashboard, with pictures: a real Prometheus stores the metrics of a daemon for six hours and
//! evaluates the panels' expressions. A browser draws the panels in the dashboard's layout.

use crate::{
    browser::{Browser, size},
    page::eight_nics,
    panels::{self, Panel, Range, Series},
    pictures::{dashboard_at_rest, update},
    prometheus::{NODE, Prometheus, expression, in_address, panels as definitions, programs},
    site::{Kubelet, container, pod},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Duration and interval of scrapes, in minutes.
const MINUTES: u32 = 360;
const SCRAPE: u32 = 2;
/// Value of Grafana's `$__rate_interval`: four scrapes.
const RATE_INTERVAL: &str = "8m";
/// Minutes in which the seventh NIC has no carrier.
const DOWN: std::ops::Range<u32> = 190..232;
/// Minutes in which the second pod runs.
const SECOND_POD: std::ops::RangeFrom<u32> = 96..;

/// Returns the kernel's counters of a port in `minute`. Data counters are in units of four bytes.
fn counters(nic: u32, minute: u32) -> Vec<(&'static str, u64)> {
    let is_down = |minute: &u32| nic == 6 && DOWN.contains(minute);
    let minutes = (1..=minute).filter(|it| !is_down(it));
    let (mut sent, mut received, mut marked, mut again) = (0, 0, 0, 0);
    for it in minutes {
        // the send rate is a wave with a period of one hour, shifted between NICs, and higher while the second pod runs
        let place = (it + nic * 4) % 60;
        let wave = u64::from(place.min(60 - place));
        let is_busy = SECOND_POD.contains(&it);
        let per_mille = if is_busy { 2000 } else { 900 } + 16 * wave;
        let words = 60 * 4_200_000 * per_mille;
        sent += words;
        received += words / 100 * u64::from(96 + nic % 4);
        marked += if is_busy {
            wave * u64::from(30 + 4 * nic)
        } else {
            9
        };
        again += u64::from(it % 45 == nic) * 4_800;
    }
    vec![
        ("counters/port_xmit_data", sent),
        ("counters/port_rcv_data", received),
        ("counters/port_xmit_discards", 0),
        ("counters/port_rcv_errors", 0),
        ("counters/symbol_error", again / 20),
        ("hw_counters/local_ack_timeout_err", again / 10),
        ("hw_counters/np_cnp_sent", marked),
        ("hw_counters/rp_cnp_handled", marked / 2),
        ("hw_counters/out_of_sequence", again),
        ("hw_counters/packet_seq_err", again),
    ]
}

/// Scrapes as one text with times. All lines of a metric family are together.
#[derive(Default)]
struct Exposition(BTreeMap<String, (String, String)>);

impl Exposition {
    /// Adds the values that were scraped at `time`, with the labels of the PodMonitor.
    fn add(&mut self, scraped: &str, time: u64) {
        let mut family = String::new();
        for line in scraped.lines().filter(|line| *line != "# EOF") {
            if let Some(head) = line.strip_prefix("# ") {
                family = head.split(' ').nth(1).expect("a family").to_owned();
                let (heads, _) = self.0.entry(family.clone()).or_default();
                if !heads.lines().any(|it| it == line) {
                    let _ = writeln!(heads, "{line}");
                }
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect("a value");
            let own = format!("instance=\"{NODE}\",job=\"rdma-device-plugin\",node=\"{NODE}\"");
            let name = match name.split_once('{') {
                Some((name, labels)) => format!("{name}{{{own},{labels}"),
                None => format!("{name}{{{own}}}"),
            };
            let (_, samples) = self.0.get_mut(&family).expect("a head");
            let _ = writeln!(samples, "{name} {value} {time}");
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (heads, samples) in self.0.values() {
            // the lines of each series are in the order of time
            let mut lines: Vec<&str> = samples.lines().collect();
            lines.sort_by_key(|line| line.rsplitn(3, ' ').last());
            let _ = writeln!(text, "{heads}{}", lines.join("\n"));
        }
        text.push_str("# EOF\n");
        text.replace("\n\n", "\n")
    }
}

/// Returns six hours of a node's metrics that end at `end`, as a daemon serves them.
async fn six_hours(end: u64) -> Exposition {
    let mut site = eight_nics();
    let view = site.view.take().expect("a view");
    let now = Arc::new(Mutex::new(view.clone()));
    let shown = now.clone();
    let server = site
        .serve_view(Arc::new(move || shown.lock().expect("a view").clone()))
        .await;
    let mut exposition = Exposition::default();
    for minute in (0..=MINUTES).step_by(SCRAPE as usize) {
        let is_down = DOWN.contains(&minute);
        *now.lock().expect("a view") = match is_down {
            true => view.clone(),
            false => {
                let mut whole = view.clone();
                let node = Arc::make_mut(&mut whole.node);
                node.unhealthy.clear();
                let devices = node.offers[0].devices.iter_mut();
                devices.for_each(|it| it.fault = None);
                whole
            }
        };
        if [0, SECOND_POD.start].contains(&minute) {
            let pods = ["trainer-0", "trainer-1"].iter().zip(["0", "1"]);
            let pods = pods.take(if minute == 0 { 1 } else { 2 });
            let pods =
                pods.map(|(name, id)| pod("team", name, container("main", "rdma/hca", &[id])));
            site.kubelet_anew(Kubelet::Answers(pods.collect()));
        }
        if minute % 20 == 4 {
            let took = Duration::from_micros(u64::from(900 + 45 * (minute % 37)));
            site.metrics.allocated("rdma/hca", took, true);
            site.metrics.prepared(took * 3, true);
        }
        for nic in 0..8 {
            let device = site
                .path()
                .join(format!("sys/class/infiniband/mlx5_{nic}/ports/1"));
            for (counter, value) in counters(nic, minute) {
                let file = device.join(counter);
                fs::create_dir_all(file.parent().expect("a directory")).expect("made");
                fs::write(file, format!("{value}\n")).expect("written");
            }
        }
        let time = end - u64::from(60 * (MINUTES - minute));
        exposition.add(&server.metrics().await, time);
    }
    exposition
}

/// Makes a Prometheus storage with the values of `exposition`.
fn storage(exposition: &Exposition) -> tempfile::TempDir {
    let storage = tempfile::tempdir().expect("a directory");
    let file = storage.path().join("six-hours.txt");
    fs::write(&file, exposition.text()).expect("written");
    let output = Command::new(programs().join("promtool"))
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([&file, storage.path()])
        .output()
        .expect("promtool");
    let printed = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&printed)
    );
    storage
}

/// Returns a target's legend for a series: `{{node}} {{device}}` with the values of these labels.
fn legend(target: &Value, labels: &BTreeMap<String, String>) -> String {
    let mut text = target["legendFormat"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    while let Some((before, rest)) = text.split_once("{{") {
        let (label, after) = rest.split_once("}}").expect("an end");
        let value = labels.get(label).map_or("", String::as_str);
        text = format!("{before}{value}{after}");
    }
    text.trim_end().to_owned()
}

/// Evaluates the panel's expressions in Prometheus. Returns the panel with the result.
async fn answered(prometheus: &Prometheus, definition: Value, range: Range) -> Panel {
    let mut series = Vec::new();
    for target in definition["targets"].as_array().expect("targets") {
        let expression = in_address(&expression(target, RATE_INTERVAL));
        let (from, to) = (range.from, range.to);
        let path = match target["instant"] == true || definition["type"] == "stat" {
            true => format!("query?query={expression}&time={to}"),
            false => format!(
                "query_range?query={expression}&start={from}&end={to}&step={}",
                60 * SCRAPE
            ),
        };
        let data = prometheus.api(&path).await.expect("an answer");
        for result in data["result"].as_array().expect("a list") {
            let labels: BTreeMap<String, String> =
                serde_json::from_value(result["metric"].clone()).expect("labels");
            let point = |value: &Value| {
                let number = value[1].as_str().and_then(|it| it.parse().ok());
                (value[0].as_f64().expect("a time"), number.expect("a value"))
            };
            let points = match result["values"].as_array() {
                Some(values) => values.iter().map(point).collect(),
                None => vec![point(&result["value"])],
            };
            series.push(Series {
                legend: legend(target, &labels),
                labels,
                points,
            });
        }
    }
    assert!(
        !series.is_empty(),
        "nothing in the panel {:?}",
        definition["title"]
    );
    Panel { definition, series }
}

fn draw(directory: &Path, panels: &[Panel], range: Range) -> Vec<u8> {
    fs::write(
        directory.join("dashboard.html"),
        panels::page(panels, range),
    )
    .expect("written");
    let browser = Browser {
        directory,
        width: panels::WIDTH,
        height: panels::height(panels),
    };
    let url = "dashboard.html";
    let dom = browser.run(&["--dump-dom", url]);
    assert_eq!(dom.matches("class=\"panel\"").count(), panels.len());
    for panel in panels {
        // compare only the beginning, because a long title is cut
        let title: String = panel.title().chars().take(24).collect();
        assert!(dom.contains(&title), "no {title}");
    }
    let picture = browser.picture(url, false);
    let blank = browser.picture("about:blank", false);
    assert_eq!(size(&picture), (browser.width, browser.height));
    assert!(picture.len() > 10 * blank.len(), "{} bytes", picture.len());
    picture
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "scripts/test --full: it needs Prometheus and Chromium"]
async fn a_browser_draws_the_dashboards_panels() {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time");
    let end = now.as_secs() / 60 * 60;
    let exposition = six_hours(end).await;
    let prometheus = Prometheus::with(storage(&exposition), &json!({}));
    let range = Range {
        from: Duration::from_secs(end - u64::from(60 * MINUTES)).as_secs_f64(),
        to: Duration::from_secs(end).as_secs_f64(),
    };
    while prometheus.api("status/buildinfo").await.is_none() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut panels = Vec::new();
    for definition in definitions() {
        panels.push(answered(&prometheus, definition, range).await);
    }
    let of = |title: &str| {
        let found = panels.iter().find(|it| it.title() == title);
        &found.expect("a panel").series
    };
    assert_eq!(of("Healthy devices")[0].points[0].1, 8.0);
    let health = of("Health of devices");
    let was_down = |series: &&Series| series.points.iter().any(|it| it.1 == 0.0);
    let down: Vec<_> = health
        .iter()
        .filter(was_down)
        .map(|it| &it.legend)
        .collect();
    assert_eq!(down, ["node-1 mlx5_6"]);
    assert_eq!(of("Which pod has which device").len(), 16);

    let directory = tempfile::tempdir().expect("a directory");
    let picture = draw(directory.path(), &panels, range);
    update("dashboard.png", &picture, &dashboard_at_rest());
}
