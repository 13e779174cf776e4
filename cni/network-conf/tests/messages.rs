// SPDX-License-Identifier: Apache-2.0
//! What is said of each wrong value, word for word, and what becomes of a right one. Each line of
//! `messages/*.txt` that is not indented is a configuration, `CNI_ARGS` in it what came by that; below it are
//!
//! - what ADD says; with `taken: ` before it what was read, where nothing is wrong
//! - `DEL: ` and `GC: `, what these say where they do not go on, and else what they go on with where
//!   ADD does not
//!
//! `UPDATE_PLANS=1 cargo test -p network-conf --test messages` writes them anew, to be read before
//! they are committed.

use cases::golden;
use cni_protocol::{Command, Mistakes};
use network_conf::{Conf, SmcRequirement};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[test]
fn messages_are_as_written() {
    golden::assert_said_of_each(env!("CARGO_MANIFEST_DIR"), "tests/messages", said);
}

fn said(input: &str) -> Vec<String> {
    let mut raw = conf(input);
    let args = raw.remove("CNI_ARGS").unwrap_or_default();
    let args = args.as_object().into_iter().flatten();
    let args = args.map(|(key, value)| (key.clone(), value.as_str().expect(input).to_owned()));
    let args: BTreeMap<String, String> = args.collect();
    let read = |mut mistakes| Conf::read(raw.clone(), &args, &mut mistakes);
    let added = read(Mistakes::refused()).and_then(|conf| {
        let wish = conf.smc.requirement()?;
        let mut differs = told(&conf);
        if wish != SmcRequirement::None {
            differs.push(format!("wish: {wish:?}"));
        }
        Ok(format!("taken: {}", differs.join(", ")))
    });
    let is_wrong = added.is_err();
    let mut said = vec![added.unwrap_or_else(|error| error.to_string())];
    for (name, command) in [("DEL", Command::Del), ("GC", Command::Gc)] {
        match read(Mistakes::of(command)) {
            Err(error) => said.push(format!("{name}: {error}")),
            Ok(conf) if is_wrong && !told(&conf).is_empty() => {
                said.push(format!("{name}: taken: {}", told(&conf).join(", ")));
            }
            Ok(_) => {}
        }
    }
    said
}

/// The configuration, with a version and a name where it has none; `null` takes them out.
fn conf(input: &str) -> Map<String, Value> {
    let value: Value = serde_json::from_str(input).unwrap_or_else(|e| panic!("{input}: {e}"));
    let mut conf = value.as_object().expect(input).clone();
    for (field, value) in [("cniVersion", "1.1.0"), ("name", "net")] {
        conf.entry(field).or_insert_with(|| value.into());
    }
    conf
}

/// What differs from an empty configuration.
fn told(read: &Conf) -> Vec<String> {
    let lines = |conf: &Conf| -> Vec<String> {
        let mut conf = conf.clone();
        conf.raw.clear();
        let network = golden::debug_fields(&format!("{:?}", conf.network));
        let rest = golden::debug_fields(&format!("{conf:?}"));
        let rest = rest.into_iter().filter(|it| !it.starts_with("network: "));
        network.into_iter().chain(rest).collect()
    };
    let empty = lines(&Conf::parse(conf("{}")).expect("the least"));
    let mut differs = lines(read);
    differs.retain(|field| !empty.contains(field));
    differs
}
