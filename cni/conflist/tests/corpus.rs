// SPDX-License-Identifier: Apache-2.0
//! Tests with lists of other projects, in their original layouts and in random layouts.

use conflist::{Entry, List, Position, TYPE, single::Single};
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fs, path::Path};

/// Returns the files with this extension, and their texts.
fn corpus(extension: &str) -> BTreeMap<String, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let files = fs::read_dir(directory).expect("the corpus").map(|entry| {
        let path = entry.expect("a file").path();
        let name = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        (name, fs::read_to_string(path).expect("text"))
    });
    files
        .filter(|(name, _)| name.ends_with(extension))
        .collect()
}

fn entries() -> Vec<Entry> {
    let fields = |value: Value| value.as_object().expect("fields").clone();
    vec![
        Entry::default(),
        Entry::new(fields(
            json!({"ipam": {"type": "rdma-ipam", "from": "parent"}}),
        )),
        Entry::new(fields(json!({
            "capabilities": {},
            "devices": [{"netdev": "bond*"}, {"vendor": "15b3", "linkType": "ether"}],
            "routing": {"metric": 200, "tableBase": 0},
            "log": {"file": "/var/log/\"rdma\".log"},
            "empty": [],
        }))),
    ]
}

fn with(text: &str, entry: &Entry) -> String {
    let list = List::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let with = list.with(entry, false);
    let with = with.unwrap_or_else(|error| panic!("{error}: {text}"));
    with.expect("it was not in there")
}

fn without(text: &str) -> String {
    let list = List::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    list.without().expect("a list").expect("it was in there")
}

fn plugins(value: &mut Value) -> &mut Vec<Value> {
    value["plugins"].as_array_mut().expect("plugins")
}

/// Adds `entry` to `text` and removes it. Checks that these edits, and an update of the entry, change only the entry.
fn goes_in_and_out(text: &str, entry: &Entry) {
    let new = with(text, entry);
    assert_eq!(without(&new), text, "every byte is back");
    let (mut before, mut after): (Value, Value) = (
        serde_json::from_str(text).expect("JSON"),
        serde_json::from_str(&new).unwrap_or_else(|error| panic!("{error}: {new}")),
    );
    let ours = plugins(&mut after).pop();
    assert_eq!(
        ours.as_ref().and_then(Value::as_object),
        Some(entry.fields()),
        "the last one"
    );
    assert_eq!(plugins(&mut before), plugins(&mut after), "the others");
    assert_eq!(before, after, "the rest");
    let list = List::parse(&new).expect("a list");
    assert_eq!(list.with(entry, true), Ok(None), "not twice");
    assert_eq!(list.with(&Entry::default(), false), Ok(None), "never two");
    for other in entries().iter().filter(|it| *it != entry) {
        let updated = list
            .with(other, true)
            .expect("a list")
            .expect("another one");
        assert_eq!(
            updated,
            with(text, other),
            "as if it had been so from the start"
        );
    }
}

#[test]
fn every_list_has_a_source() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let sources = fs::read_to_string(directory.join("SOURCES.md")).expect("sources");
    let mut lists = corpus(".conflist");
    lists.extend(corpus(".conf"));
    for file in lists.keys() {
        assert!(sources.contains(&format!("`{file}`")), "{file}");
    }
    // the table has a row for each file except the 4 constructed files, which a sentence names
    let named = sources.lines().filter(|line| line.starts_with("| `"));
    assert_eq!(named.count() + 4, lists.len());
}

#[test]
fn inserting_and_removing_an_entry_keeps_every_byte() {
    let corpus = corpus(".conflist");
    assert_eq!(corpus.len(), 16);
    for text in corpus.values() {
        entries()
            .iter()
            .for_each(|entry| goes_in_and_out(text, entry));
    }
}

/// Writer of JSON in a random layout that JSON allows.
struct Layout(u64);

impl Layout {
    fn random(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn blank(&mut self, out: &mut String) {
        for _ in 0..self.random(4) {
            let blanks = ["", " ", "  ", "\t", "\n", "\r\n", "\n    "];
            out.push_str(blanks[self.random(7) as usize]);
        }
    }

    fn write(&mut self, value: &Value, out: &mut String) {
        self.blank(out);
        match value {
            Value::Array(values) => {
                out.push('[');
                for (index, value) in values.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { "," });
                    self.write(value, out);
                }
                self.blank(out);
                out.push(']');
            }
            Value::Object(members) => {
                out.push('{');
                for (index, (name, value)) in members.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { "," });
                    self.write(&Value::from(name.as_str()), out);
                    self.blank(out);
                    out.push(':');
                    self.write(value, out);
                }
                self.blank(out);
                out.push('}');
            }
            other => out.push_str(&other.to_string()),
        }
        self.blank(out);
    }
}

#[test]
fn any_layout_goes_in_and_out() {
    let mut layout = Layout(0x2545_f491_4f6c_dd1d);
    let corpus = corpus(".conflist");
    let values = corpus
        .values()
        .map(|text| serde_json::from_str(text).expect("JSON"));
    let values: Vec<Value> = values.collect();
    for round in 0..600 {
        let mut text = String::new();
        layout.write(&values[round % values.len()], &mut text);
        goes_in_and_out(&text, &entries()[round % 3]);
    }
}

#[test]
fn new_text_has_the_form_of_its_neighbours() {
    let corpus = corpus(".conflist");
    let entry = Entry::new(Map::from_iter([("mtu".to_owned(), json!(9000))]));
    let tail = |file: &str| {
        let new = with(&corpus[file], &entry);
        let common = new.bytes().zip(corpus[file].bytes());
        let at = common.take_while(|(new, old)| new == old).count();
        new[at..].to_owned()
    };
    assert_eq!(
        tail("flannel.conflist"),
        ",\n    {\n      \"type\": \"rdma-cni\",\n      \"mtu\": 9000,\n      \"capabilities\": {\n        \
         \"io.kubernetes.cri.pod-annotations\": true\n      }\n    }\n  ]\n}\n"
    );
    assert_eq!(
        tail("kindnet.conflist"),
        ",\n\t{\n\t\t\"type\": \"rdma-cni\",\n\t\t\"mtu\": 9000,\n\t\t\"capabilities\": {\n\t\t\t\
         \"io.kubernetes.cri.pod-annotations\": true\n\t\t}\n\t}\n\t]\n}\n"
    );
    assert_eq!(
        tail("ovn-kubernetes.conflist"),
        ",{\"type\":\"rdma-cni\",\"mtu\":9000,\"capabilities\":\
         {\"io.kubernetes.cri.pod-annotations\":true}}]}"
    );
    assert_eq!(
        tail("bridge-one-line.conflist"),
        ", { \"type\": \"rdma-cni\", \"mtu\": 9000, \"capabilities\": \
         { \"io.kubernetes.cri.pod-annotations\": true } } ] }\n"
    );
    let crlf = with(&corpus["crlf.conflist"], &entry);
    assert_eq!(crlf.matches('\n').count(), crlf.matches("\r\n").count());
}

#[test]
fn a_single_configuration_becomes_a_list_of_it_and_ours() {
    for (file, text) in corpus(".conf") {
        let single = Single::parse(&text).expect("a configuration");
        let list = single.list(&Entry::default()).expect("a list");
        let mut value: Value = serde_json::from_str(&list).expect("JSON");
        let original: Value = serde_json::from_str(&text).expect("JSON");
        for field in ["name", "cniVersion"] {
            assert_eq!(value[field], original[field], "{file}");
        }
        let of_list = List::parse(&list).expect("a list").ours().expect("ours");
        assert_eq!(of_list.place, Position::Plugin(1));
        assert_eq!(of_list.configuration["type"], TYPE);
        assert_eq!(plugins(&mut value)[0], original, "{file}");
    }
}
