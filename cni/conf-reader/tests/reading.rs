// SPDX-License-Identifier: Apache-2.0
//! Tests of values that `conf-reader` reads, and of its messages for wrong values. The programs' tests check the
//! messages of their own fields.

use conf_reader::{AbsolutePath, Field, Number, Texts, Wrong};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Server {
    name: String,
    mode: Option<Mode>,
    ports: Option<Vec<Port>>,
    log_file: Option<AbsolutePath>,
    tags: Texts,
    verbose: Option<bool>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
struct Port {
    number: Number<1, 9>,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
enum Mode {
    Fast,
    VerySafe,
}

fn read(value: &Value) -> Result<Server, String> {
    let root = Field::root(value.as_object().expect("an object"));
    root.read().map_err(|wrong: Wrong| wrong.to_string())
}

#[test]
fn a_null_is_no_value() {
    let least = Server {
        name: "a".into(),
        mode: None,
        ports: None,
        log_file: None,
        tags: Texts::default(),
        verbose: None,
    };
    let nulls = json!({"tags": null, "name": "a", "mode": null, "ports": null, "logFile": null});
    assert_eq!(read(&nulls), Ok(least));
    let full = json!({"name": "a", "mode": "verySafe", "ports": [{"number": 1}, {"number": 9, "x": 1}],
                      "logFile": "/a", "tags": "one", "verbose": true});
    let full = read(&full).expect("a server");
    assert_eq!(full.mode, Some(Mode::VerySafe));
    assert_eq!(full.ports.map(|ports| ports.len()), Some(2));
    assert_eq!(full.tags.0, ["one"]);
}

#[test]
fn errors_are_reported_by_place() {
    for (value, message) in [
        (json!({}), "name: must be a string, and is missing"),
        (json!({"name": 5}), "name: must be a string, and is 5"),
        (
            json!({"name": "a", "mode": "safe"}),
            r#"mode: must be one of fast, verySafe, and is "safe""#,
        ),
        (
            json!({"name": "a", "mode": {}}),
            "mode: must be a string, and is {}",
        ),
        (
            json!({"name": "a", "ports": 5}),
            "ports: must be a list, and is 5",
        ),
        (
            json!({"name": "a", "ports": [{"number": 3}, null]}),
            "ports[1]: must be an object, and is null",
        ),
        (
            json!({"name": "a", "ports": [{"number": 3}, {"number": 10}]}),
            "ports[1].number: must be a whole number from 1 to 9, and is 10",
        ),
        (
            json!({"name": "a", "ports": [{}]}),
            "ports[0].number: must be a whole number from 1 to 9, and is missing",
        ),
        (
            json!({"name": "a", "logFile": "a"}),
            r#"logFile: must be an absolute path, and is "a""#,
        ),
        (
            json!({"name": "a", "tags": ["a", 5]}),
            r#"tags: must be a string or a list of strings, with numbers in quotes, and is ["a",5]"#,
        ),
        (
            json!({"verbose": 0, "Mode": 1, "name": 5}),
            "Mode: not known: did you mean mode?",
        ),
        (
            json!({"name": "a", "prots": []}),
            "prots: not known: did you mean ports?",
        ),
        (
            json!({"name": "a", "level": 1}),
            "level: not known; the fields here are name, mode, ports, logFile, tags, verbose",
        ),
        // the structure's order of fields decides which of several errors is reported, not the order in the object
        (
            json!({"verbose": 0, "mode": 1, "name": "a"}),
            "mode: must be a string, and is 1",
        ),
    ] {
        assert_eq!(read(&value), Err(message.to_owned()), "{value}");
    }
}

#[test]
fn names_as_gos_decoder_takes_them() {
    let value = json!({"NAME": "a", "Mode": "fast", "mode": "verySafe", "more": 1});
    let root = Field::root(value.as_object().expect("an object")).any_case();
    assert_eq!(root.get("name"), Ok(Some("a".to_owned())));
    // if the object has the name in several cases, the exact name takes precedence
    assert_eq!(root.get("mode"), Ok(Some(Mode::VerySafe)));
    assert_eq!(root.unknown(&["name", "mode"]), ["more"]);
    assert!(!root.has("name") && root.has("NAME"));
}

#[test]
fn a_value_by_its_place() {
    let value = json!({"list": [{"a": 1}, {"a": "x"}], "odd": [1]});
    let root = Field::root(value.as_object().expect("an object"));
    let list = root.objects("list").expect("objects");
    let wrong = list[1].at("a").wrong("must be odd");
    assert_eq!(wrong.to_string(), r#"list[1].a: must be odd, and is "x""#);
    let refused = list[1].refused("it is even");
    assert_eq!(refused.to_string(), "list[1]: it is even");
    assert_eq!(refused.value.as_deref(), Some(r#"{"a":"x"}"#));
    let forged = root.at("x\nname: \u{1b}[2J").wrong("must be odd");
    let expected = r"x\nname: \u{1b}[2J: must be odd, and is missing";
    assert_eq!(forged.to_string(), expected);
    let none = root.at("list").element(7).at("a").wrong("must be odd");
    assert_eq!(none.to_string(), "list[7].a: must be odd, and is missing");
    let odd = root.objects("odd").expect_err("a number");
    assert_eq!(odd.to_string(), "odd[0]: must be an object, and is 1");
    let choices = [("on", true), ("off", false)];
    assert_eq!(root.choice("none", &choices), Ok(None));
    let choice = root.choice("list", &choices).expect_err("a list");
    assert!(choice.to_string().starts_with("list: must be a string"));
}
