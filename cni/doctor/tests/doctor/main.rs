// SPDX-License-Identifier: Apache-2.0
//! Tests the findings of `rdma-device-plugin doctor` as data. Each file in `cases` names a node without defects in
//! `bases`, and the differences from it (see the crate `cases`). The text file of the same name has the expected report
//! with the exit code. In a GID table, `filled` gives the number of GIDs instead of `gids`.
//!
//! `UPDATE_PLANS=1 cargo test -p doctor --test doctor` writes all reports again. Read them before you
//! commit them.

use doctor::{examine, facts::Facts};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn nodes_are_judged_as_written() {
    let cases = cases::list(env!("CARGO_MANIFEST_DIR"), "tests/doctor/cases");
    assert!(cases.len() >= 30, "{}", cases.len());
    cases::assert_as_written(&cases, report_of);
}

#[test]
fn the_documentation_shows_the_report() {
    let report = report_of(&tests().join("cases/as-in-the-documentation.json"));
    let (report, _) = report.split_once("exit code").expect("an exit code");
    let page = fs::read_to_string(tests().join("../../../../docs/doctor.md")).expect("a page");
    assert!(
        page.contains(report),
        "docs/doctor.md does not have:\n{report}"
    );
}

#[test]
fn facts_come_back_as_they_were_printed() {
    for base in ["bonded", "exclusive"] {
        let facts: Facts = cases::read_as(&tests().join("bases").join(base).with_extension("json"));
        let printed = serde_json::to_value(&facts).expect("JSON");
        let read: Facts = serde_json::from_value(printed).expect("facts");
        assert_eq!(read, facts, "{base}");
    }
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctor")
}

fn report_of(case: &Path) -> String {
    let mut facts = cases::read(case);
    fill_gid_tables(&mut facts);
    let facts: Facts = cases::parse(case, facts);
    let findings = examine::examine(&facts);
    let code = doctor::code(&facts, &findings, false);
    format!("{}exit code {code}\n", doctor::report(&facts, &findings))
}

fn fill_gid_tables(facts: &mut Value) {
    for port in facts["gids"].as_array_mut().into_iter().flatten() {
        let Some(count) = port["table"]["filled"].as_u64() else {
            continue;
        };
        let gid = |index| {
            let ip = format!("2001:db8::{:x}", index + 1);
            json!({"index": index, "ip": ip, "kind": "roce-v2", "netdev": "rdma0"})
        };
        port["table"]["gids"] = (0..count).map(gid).collect();
    }
}
