// SPDX-License-Identifier: Apache-2.0
//! Checks the pictures in the documentation by the digests of their sources. Every test run detects a picture whose
//! source has changed, even without a browser.

use crate::{
    page::eight_nics,
    panels::{self, Panel, Range, Series},
    prometheus::panels as definitions,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{env, fs, path::PathBuf};

/// File with the digest of each picture and of its source, by the picture's name.
const RECORD: &str = "tests/metrics/pictures.json";

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn record() -> Value {
    let text = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(RECORD));
    serde_json::from_str(&text.expect("the record")).expect("JSON")
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the picture into the documentation, and the digest of its source `made_of`. Does nothing without
/// `UPDATE_PICTURES=1`.
pub(crate) fn update(name: &str, png: &[u8], made_of: &str) {
    if env::var_os("UPDATE_PICTURES").is_none_or(|it| it != "1") {
        return;
    }
    fs::write(docs().join(name), png).expect("written");
    let mut record = record();
    record[name] = json!({"picture": digest(png), "made_of": digest(made_of.as_bytes())});
    let text = serde_json::to_string_pretty(&record).expect("JSON");
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(RECORD);
    fs::write(file, format!("{text}\n")).expect("written");
}

#[track_caller]
fn is_of(name: &str, made_of: &str) {
    let png = fs::read(docs().join(name)).expect("the picture");
    let present = json!({"picture": digest(&png), "made_of": digest(made_of.as_bytes())});
    assert_eq!(
        present,
        record()[name],
        "docs/{name} is of something else by now: draw it anew with UPDATE_PICTURES=1 (docs/dev/testing.md), and look at it"
    );
}

/// Returns the page of the made-up node without times, which differ in each run, and without the version, because a
/// release needs no new picture.
pub(crate) fn page_at_rest(page: &str) -> String {
    let mut parts = page.split("<time>");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.split_once("</time>").expect("an end").1);
    let page = rest.fold(first, |page, part| page + part);
    page.replace(env!("CARGO_PKG_VERSION"), "")
}

/// Returns a page with the dashboard's panels, and then the panels' queries. Each panel has one made-up line, because
/// Prometheus' answers differ in each run.
pub(crate) fn dashboard_at_rest() -> String {
    let range = Range {
        from: 0.0,
        to: 600.0,
    };
    let panel = |definition: Value| {
        let series = Series {
            labels: [("device".to_owned(), "mlx5_0".to_owned())].into(),
            legend: "node-1 mlx5_0".to_owned(),
            points: vec![(0.0, 1.0), (300.0, 7.0), (600.0, 3.0)],
        };
        Panel {
            definition,
            series: vec![series],
        }
    };
    let panels: Vec<Panel> = definitions().into_iter().map(panel).collect();
    let queries = definitions()
        .iter()
        .map(|it| it["targets"].to_string())
        .collect::<String>();
    panels::page(&panels, range) + &queries
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_picture_is_of_the_page() {
    let site = eight_nics();
    let server = site.serve().await;
    let (_, page) = server.answer("GET", "/").await;
    is_of("page.png", &page_at_rest(&page));
}

#[test]
fn the_dashboards_picture_is_of_the_dashboard() {
    is_of("dashboard.png", &dashboard_at_rest());
}
