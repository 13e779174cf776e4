// SPDX-License-Identifier: Apache-2.0
//! Tests the exact messages for wrong values, and the results of right values. Each line of `messages/*.txt` without
//! indentation is a configuration. Its member `CNI_ARGS` stands for the environment variable. The lines below a
//! configuration have:
//!
//! - the error of ADD, or `taken: ` and the settings that differ from the defaults
//! - after `DEL: ` and `GC: `, the error of these verbs, or the settings with which they continue although ADD fails
//!
//! `UPDATE_PLANS=1 cargo test -p network-conf --test messages` writes the files again. Read them before you commit.

use cases::golden;
use cni_protocol::{Command, Mistakes};
use network_conf::{Conf, SmcRequirement};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

#[test]
fn messages_are_as_written() {
    golden::assert_lines_of_each(env!("CARGO_MANIFEST_DIR"), "tests/messages", outcomes);
}

fn outcomes(input: &str) -> Vec<String> {
    let mut raw = conf(input);
    let args = raw.remove("CNI_ARGS").unwrap_or_default();
    let args = args.as_object().into_iter().flatten();
    let args = args.map(|(key, value)| (key.clone(), value.as_str().expect(input).to_owned()));
    let args: BTreeMap<String, String> = args.collect();
    let read = |mut mistakes| Conf::read(raw.clone(), &args, &mut mistakes);
    let added = read(Mistakes::refused()).and_then(|conf| {
        let requirement = conf.smc.requirement()?;
        let mut differs = changed_settings(&conf);
        if requirement != SmcRequirement::None {
            differs.push(format!("requirement: {requirement:?}"));
        }
        Ok(format!("taken: {}", differs.join(", ")))
    });
    let is_wrong = added.is_err();
    let mut lines = vec![added.unwrap_or_else(|error| error.to_string())];
    for (name, command) in [("DEL", Command::Del), ("GC", Command::Gc)] {
        match read(Mistakes::of(command)) {
            Err(error) => lines.push(format!("{name}: {error}")),
            Ok(conf) if is_wrong && !changed_settings(&conf).is_empty() => {
                lines.push(format!(
                    "{name}: taken: {}",
                    changed_settings(&conf).join(", ")
                ));
            }
            Ok(_) => {}
        }
    }
    lines
}

/// Returns the configuration `input`. Adds `cniVersion` and `name` if they are absent. An input with `null` tests a
/// missing field.
fn conf(input: &str) -> Map<String, Value> {
    let value: Value = serde_json::from_str(input).unwrap_or_else(|e| panic!("{input}: {e}"));
    let mut conf = value.as_object().expect(input).clone();
    for (field, value) in [("cniVersion", "1.1.0"), ("name", "net")] {
        conf.entry(field).or_insert_with(|| value.into());
    }
    conf
}

/// Returns the settings that differ from those of an empty configuration.
fn changed_settings(read: &Conf) -> Vec<String> {
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
