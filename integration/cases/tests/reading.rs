// SPDX-License-Identifier: Apache-2.0
//! Tests that a case is its base with the case's changes.

use serde_json::{Value, json};
use std::{any::Any, fs, panic};

/// Returns the document for `case`, with the bases that all tests here use.
fn read(case: &Value) -> Value {
    let root = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &Value| {
        let file = root.path().join(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, text.to_string()).expect("written");
    };
    let links = json!([{"name": "eth2", "up": true, "mtu": 1500}, {"name": "eth3", "up": true}]);
    let host = json!({"mode": "shared", "links": links, "rails": [{"state": 1}, {"state": 2}]});
    write("bases/host.json", &host);
    write(
        "bases/link/vf.json",
        &json!({"name": "eth9", "ports": [{"number": 1, "netdev": 3}]}),
    );
    write(
        "bases/exclusive.json",
        &json!({"base": "host", "mode": "exclusive"}),
    );
    write("cases/a.json", case);
    cases::read(&root.path().join("cases/a.json"))
}

/// Returns the message with which `read` refuses `case`.
fn refused(case: &Value) -> String {
    let refused = panic::catch_unwind(|| read(case)).expect_err("refused");
    let text = refused.downcast::<String>().expect("a text");
    let (_, text) = text.split_once("cases/a.json: ").expect("the file");
    text.to_owned()
}

#[test]
fn a_case_without_a_base_is_itself() {
    let case = json!({"a": [null, {"b": [1, "c"]}], "d": {}});
    assert_eq!(read(&case), case);
    assert_eq!(read(&json!([1])), json!([1]));
}

#[test]
fn members_change_come_and_go() {
    let mut read = read(&json!({"base": "exclusive", "links": null, "rails": [], "pod": {"a": 1}}));
    assert_eq!(
        read,
        json!({"mode": "exclusive", "rails": [], "pod": {"a": 1}})
    );
    // the members keep the order of the files: first the base's, then the case's
    let members: Vec<_> = read.as_object_mut().expect("an object").keys().collect();
    assert_eq!(members, ["mode", "rails", "pod"]);
}

#[test]
fn elements_of_a_list_go_by_their_names() {
    let links = |patch: Value| read(&json!({"base": "host", "links": patch}))["links"].take();
    let one = json!({"name": "eth2", "up": true, "mtu": 1500});
    let other = json!({"name": "eth3", "up": true});
    assert_eq!(links(json!({"eth3": null})), json!([one]));
    assert_eq!(
        links(json!({"eth2": {"mtu": null, "name": "eth7"}})),
        json!([{"name": "eth7", "up": true}, other])
    );
    assert_eq!(
        links(json!({"eth8": {"up": false}})),
        json!([one, other, {"name": "eth8", "up": false}])
    );
    // a list or an object replaces a number
    let case = json!({"base": "host", "links": {"eth2": {"mtu": [1]}}});
    let changed = json!({"a": {"base": "host", "links": {"eth2": {"mtu": {"b": 1}}}}});
    assert_eq!(read(&case)["links"][0]["mtu"], json!([1]));
    assert_eq!(read(&changed)["a"]["links"][0]["mtu"], json!({"b": 1}));
    // an element without a name is named by its position
    let case = json!({"base": "host", "rails": {"1": {"state": 4}}});
    assert_eq!(read(&case)["rails"], json!([{"state": 1}, {"state": 4}]));
}

#[test]
fn there_are_bases_within_a_case() {
    let vf = json!({"base": "link/vf", "ports": {"1": {"netdev": 5}, "2": {"netdev": 6}}});
    let ports = json!([{"number": 1, "netdev": 5}, {"number": 2, "netdev": 6}]);
    let expanded = json!({"name": "eth9", "ports": ports});
    assert_eq!(read(&json!({"home": vf})), json!({"home": expanded}));
    assert_eq!(read(&json!([vf])), json!([expanded]));
    // a base inside an element replaces the element of the outer base
    let case = json!({"base": "host", "links": {"eth3": vf, "eth4": vf}});
    let mut new = expanded.clone();
    new["name"] = "eth4".into();
    assert_eq!(
        read(&case)["links"].as_array().expect("a list")[1..],
        [expanded, new]
    );
}

#[test]
fn a_case_that_does_not_fit_its_base_is_refused() {
    for (case, why) in [
        (
            json!({"base": "host", "pod": null}),
            "pod: it is not there to be taken away",
        ),
        (
            json!({"base": "host", "links": {"eth4": null}}),
            "links: eth4: it is not there to be taken away",
        ),
        (
            json!({"base": "host", "links": {"eth2": {"name": "eth3"}, "eth3": {}}}),
            "links: eth3: 2 elements have this name",
        ),
        (
            json!({"base": "host", "rails": {"7": {}}}),
            "rails: 7: the list's elements have no names: write the whole list",
        ),
        (
            json!({"base": "none"}),
            "base none: No such file or directory (os error 2)",
        ),
        (json!({"base": 1}), "base: not the name of a base document"),
    ] {
        assert_eq!(refused(&case), why);
    }
}

#[test]
fn texts_without_a_case_and_bases_without_a_use_are_found() {
    let root = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| {
        let file = root.path().join(name);
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, text).expect("written");
    };
    write("cases/b.json", r#"{"a": [{"base": "link/vf"}]}"#);
    write("cases/a.json", "{}");
    write("cases/a.txt", "");
    write("bases/link/vf.json", r#"{"base": "link/pf"}"#);
    write("bases/link/pf.json", "{}");
    let manifest = root.path().to_str().expect("UTF-8");
    let list = || panic::catch_unwind(|| cases::list(manifest, "cases"));
    let found = list().expect("the cases");
    let names: Vec<_> = found.iter().filter_map(|it| it.file_name()).collect();
    assert_eq!(names, ["a.json", "b.json"]);
    let message = |error: Box<dyn Any + Send>| *error.downcast::<String>().expect("a text");
    write("cases/c.txt", "");
    let refused = message(list().expect_err("a text of no case"));
    assert!(refused.contains("this text has no case"), "{refused}");
    write("cases/c.json", "{}");
    write("bases/link/sf.json", "{}");
    let refused = message(list().expect_err("a base of no case"));
    assert!(refused.contains("link/sf"), "{refused}");
}

#[test]
fn a_text_that_differs_is_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let case = directory.path().join("a.json");
    fs::write(case.with_extension("txt"), "one\ntwo\nthree\n").expect("written");
    let cases = [case];
    cases::assert_as_written(&cases, |_| "one\ntwo\nthree\n".to_owned());
    let differs = panic::catch_unwind(|| {
        cases::assert_as_written(&cases, |_| "one\n2\nthree\n".to_owned());
    });
    let text = differs
        .expect_err("it differs")
        .downcast::<String>()
        .expect("a text");
    assert!(text.ends_with("\na:\n  - two\n  + 2\n"), "{text}");
}
