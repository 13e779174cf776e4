// SPDX-License-Identifier: Apache-2.0
//! CNI lists of other networks. Adding and removing our entry changes no other byte of a list.

use crate::assert_one_line;
use conflist::{
    Choice, Directory, Entry, File, List, Picked, Runtime, follow, pick, single::Single,
};
use serde_json::{Value, json};

fn entries() -> [Entry; 2] {
    let fields =
        json!({"ipam": {"type": "rdma-ipam", "from": "parent"}, "devices": [{"netdev": "bond*"}]});
    [
        Entry::default(),
        Entry::new(fields.as_object().expect("an object").clone()),
    ]
}

/// A CNI list.
///
/// # Panics
/// A change affects another plugin's entry; our entry is not the last, or has other fields than requested; our entry is
/// still there after its removal.
pub fn list(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let list = match List::parse(text) {
        Ok(list) => list,
        Err(error) => return assert_one_line(&error),
    };
    for entry in entries() {
        for update in [false, true] {
            match list.with(&entry, update) {
                Ok(Some(new)) => goes_in(text, &list, &new, &entry),
                Ok(None) => {}
                Err(error) => assert_one_line(&error),
            }
        }
    }
    if let Ok(Some(left)) = list.without() {
        let left = List::parse(&left).expect("a list is left");
        assert_eq!(left.own(), None);
        assert_eq!(left.name(), list.name());
    }
}

fn goes_in(text: &str, list: &List<'_>, new: &str, entry: &Entry) {
    let with = List::parse(new).expect("a list");
    assert_eq!(with.own().as_ref(), Some(entry.fields()));
    assert_eq!(with.with(entry, true), Ok(None), "the list needs no change");
    if list.own().is_some() {
        return;
    }
    let without = with.without().expect("a list").expect("the entry");
    assert_eq!(without, text, "every byte is back");
    let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let (before, mut after) = (value(text), value(new));
    let ours = after["plugins"].as_array_mut().and_then(Vec::pop);
    assert_eq!(
        ours.as_ref().and_then(Value::as_object),
        Some(entry.fields())
    );
    assert_eq!(before, after);
}

/// A directory of files. `==` separates the files; the first line of a file is its name, and the rest is its text.
///
/// # Panics
/// The list made from a single configuration is not valid; the runtime would use a missing file.
pub fn directory(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let mut files = vec![];
    for part in text.split("==") {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        files.push(File {
            name: name.to_owned(),
            text: Ok(text.to_owned()),
        });
        if let Ok(single) = Single::parse(text) {
            for entry in entries() {
                match single.list(&entry) {
                    Ok(list) => {
                        let list = List::parse(&list).expect("a list");
                        assert_eq!(list.own().as_ref(), Some(entry.fields()));
                    }
                    Err(error) => assert_one_line(&error),
                }
            }
        }
        if let Err(error) = Picked::read(name, text) {
            assert_one_line(&error);
        }
    }
    let directory = Directory::new(files);
    for runtime in [Runtime::Containerd, Runtime::Crio { network: None }] {
        let picked = pick(&directory, &runtime);
        if let Choice::Picked(picked) = picked.choice {
            assert!(directory.file(&picked.file).is_some());
            let called = follow(&directory, picked);
            assert!(directory.file(&called.file).is_some());
        }
    }
}
