// SPDX-License-Identifier: Apache-2.0
//! Tests of lists to which our entry can be added and from which it can be removed, and of lists
//! that are refused.

use conflist::{
    Broken, Entry, List, Position,
    list::Refused,
    single::{self, Single},
};
use network_conf::Conf;
use serde_json::json;

fn refused(text: &str) -> String {
    let list = List::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    match list.with(&Entry::default(), false) {
        Err(refused) => refused.to_string(),
        Ok(text) => panic!("not refused: {text:?}"),
    }
}

fn broken(text: &str) -> String {
    List::parse(text).expect_err("broken").to_string()
}

const LIST: &str = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"}]}"#;

#[test]
fn a_text_that_no_runtime_takes_is_reported_in_a_sentence() {
    let cases = [
        ("", "it is not a valid JSON object: EOF"),
        (
            "{\"name\":\"n\",\"plugins\":[{\"type\":\"a\"}",
            "it is not a valid JSON object: EOF",
        ),
        (
            "[]",
            "it is not a valid JSON object: invalid type: sequence",
        ),
        (
            "// x\n{}",
            "it is not a valid JSON object: expected value at line 1 column 1",
        ),
        (
            "\u{feff}{}",
            "it is not a valid JSON object: expected value at line 1 column 1",
        ),
        (
            "{} {}",
            "it is not a valid JSON object: trailing characters",
        ),
        (
            "{\"x\":1e999,\"name\":\"n\"}",
            "it is not a valid JSON object: number out of range",
        ),
        ("{}", "name is missing"),
        ("{\"name\":1}", "name must be a string"),
        (
            "{\"name\":\"n\",\"loadOnlyInlinedPlugins\":true}",
            "plugins is missing",
        ),
        ("{\"name\":\"n\",\"plugins\":{}}", "plugins must be a list"),
        (
            "{\"name\":\"n\",\"plugins\":[]}",
            "plugins must have at least one plugin",
        ),
        (
            "{\"name\":\"n\",\"plugins\":[1]}",
            "plugins[0] must be an object",
        ),
        (
            "{\"name\":\"n\",\"plugins\":[{\"type\":\"a\"},{}]}",
            "plugins[1].type is missing",
        ),
        (
            "{\"name\":\"n\",\"plugins\":[{\"type\":\"\"}]}",
            "plugins[0].type is missing",
        ),
        (
            "{\"name\":\"n\",\"cniVersion\":1,\"plugins\":[]}",
            "cniVersion must be a string",
        ),
    ];
    for (text, sentence) in cases {
        assert!(
            broken(text).starts_with(sentence),
            "{text}: {}",
            broken(text)
        );
    }
}

#[test]
fn a_list_in_which_ours_would_not_work_is_left_alone() {
    let long = format!("\"{}\"", "a".repeat(201));
    let cases = [
        (
            "\"1.0.0\"",
            "\"0.2.0\"",
            "cniVersion is 0.2.0; rdma-cni supports 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0",
        ),
        ("\"1.0.0\"", "\"2.0.0\"", "cniVersion is 2.0.0;"),
        (
            "\"cniVersion\":\"1.0.0\",",
            "",
            "cniVersion is missing, which means 0.1.0;",
        ),
        ("\"n\"", "\"a b\"", "name \"a b\" is not valid;"),
        ("\"n\"", &long, &format!("name {long} is not valid;")),
        (
            "\"n\"",
            "\"n\",\"name\":\"n\"",
            "the list has \"name\" twice; keep only one",
        ),
        (
            "\"bridge\"",
            "\"a\",\"type\":\"bridge\"",
            "plugins[0] has \"type\" twice;",
        ),
    ];
    for (old, new, sentence) in cases {
        let text = LIST.replace(old, new);
        assert!(
            refused(&text).starts_with(sentence),
            "{text}: {}",
            refused(&text)
        );
    }
}

/// The daemon adds our entry only to a list whose name our plugin accepts.
#[test]
fn a_name_is_valid_as_in_our_plugin() {
    for name in [
        "a".repeat(200),
        "a".repeat(201),
        "_a".into(),
        "a.b-c_d".into(),
    ] {
        let text = LIST.replace("\"n\"", &format!("{name:?}"));
        let edited = List::parse(&text)
            .expect("a list")
            .with(&Entry::default(), false);
        let mut entry = Entry::default().fields().clone();
        entry.insert("cniVersion".into(), json!("1.0.0"));
        entry.insert("name".into(), json!(name));
        let read = Conf::parse(entry);
        assert_eq!(edited.is_ok(), read.is_ok(), "{edited:?} {read:?}");
    }
}

#[test]
fn the_newest_of_several_versions_is_enough() {
    let text = LIST.replace(
        "\"cniVersion\":\"1.0.0\"",
        "\"cniVersions\":[\"1.0.0\",\"9.0.0\"]",
    );
    assert!(
        List::parse(&text)
            .expect("a list")
            .with(&Entry::default(), false)
            .is_ok()
    );
}

#[test]
fn a_users_own_settings_stay() {
    for kind in ["rdma", "rdma-cni"] {
        let text = LIST.replace(
            "{\"type\"",
            &format!("{{\"type\":\"{kind}\",\"x\":1}},{{\"type\""),
        );
        let list = List::parse(&text).expect("a list");
        assert_eq!(list.with(&Entry::default(), false), Ok(None));
        let ours = list.ours().expect("ours");
        assert_eq!(
            (ours.place, &ours.configuration["x"]),
            (Position::Plugin(0), &json!(1))
        );
    }
    let text = LIST.replace("\"bridge\"", "\"rdma\"");
    let list = List::parse(&text).expect("a list");
    assert_eq!(list.with(&Entry::default(), true), Ok(None));
    assert_eq!(list.without(), Ok(None));
}

#[test]
fn two_of_ours_become_one_where_the_first_is() {
    let entry = Entry::default();
    let text = LIST.replace(
        "[{\"type\":\"bridge\"}]",
        r#"[ {"type":"rdma-cni","mtu":1}, {"type":"bridge"}, {"type":"rdma-cni"}, {"type":"a"}]"#,
    );
    let list = List::parse(&text).expect("a list");
    let updated = list.with(&entry, true).expect("a list").expect("changed");
    let updated = List::parse(&updated).expect("a list");
    assert_eq!(
        updated.types().collect::<Vec<_>>(),
        ["rdma-cni", "bridge", "a"]
    );
    assert_eq!(updated.ours().expect("ours").configuration, *entry.fields());
    let none = list.without().expect("a list").expect("changed");
    assert!(
        none.ends_with(r#""plugins":[ {"type":"bridge"}, {"type":"a"}]}"#),
        "{none}"
    );
}

#[test]
fn the_only_plugin_is_not_taken_out() {
    let text = LIST.replace("bridge", "rdma-cni");
    assert_eq!(
        List::parse(&text).expect("a list").without(),
        Err(Refused::Alone)
    );
}

#[test]
fn multus_calls_ours_for_what_it_took_over() {
    let text = r#"{"cniVersion":"0.3.1","name":"m","plugins":[{"type":"multus","delegates":
        [{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"rdma-cni"}]}]}]}"#;
    let list = List::parse(text).expect("a list");
    assert_eq!(list.ours().expect("ours").place, Position::Delegate(0));
    assert_eq!(list.with(&Entry::default(), true), Ok(None));
    let text = r#"{"name":"m","type":"multus","delegates":[{"type":"rdma"}]}"#;
    let single = Single::parse(text).expect("a configuration");
    assert_eq!(single.ours().expect("ours").place, Position::Delegate(0));
}

#[test]
fn a_single_configuration_is_refused_as_a_list_is() {
    let refused = |text: &str| {
        let single = Single::parse(text).expect("a configuration");
        let list = single.list(&Entry::default());
        list.expect_err("refused").to_string()
    };
    let text = r#"{"name":"n","type":"a"}"#;
    assert!(refused(text).starts_with("cniVersion is missing"));
    let text = r#"{"cniVersion":"1.0.0","type":"a"}"#;
    assert!(refused(text).starts_with("name \"\" is not valid"));
    let text = r#"{"cniVersion":"1.0.0","name":"n","type":"a","type":"b"}"#;
    assert!(refused(text).starts_with("the configuration has \"type\" twice"));
    let list = Single::parse(LIST).expect_err("a list");
    assert_eq!(
        list,
        Broken::Missing {
            field: "type".into()
        }
    );
}

#[test]
fn the_lists_name_sorts_just_before_the_single_configuration() {
    for file in ["10-terway.conf", "x.json", ".conf", "10-a.b.conf"] {
        let list = single::list_name(file);
        assert!(list.as_str() < file, "{list}");
        assert!(single::is_from(&list, file), "{list}");
        assert!(!single::is_from(&list, &format!("0{file}")), "{list}");
    }
    assert!(!single::is_from("10-a+rdma-cni.conflist", "10-a.conflist"));
}
