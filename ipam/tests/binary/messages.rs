// SPDX-License-Identifier: Apache-2.0
//! Tests the exact message for each wrong value, and the result for each right value. Each line of `messages/*.txt`
//! without indentation is a configuration. The lines below it have the error of ADD, or `taken: ` and the settings that
//! differ from the defaults. If DEL fails, a line has `DEL: ` and its error.
//!
//! `UPDATE_PLANS=1 cargo test -p rdma-ipam --test binary messages` writes the files again. Read them before you commit.

use cases::golden;
use cni_protocol::{Command, ConfError, Environment, Mistakes};
use rdma_ipam::conf::{Place, Plan, conflicts};
use serde_json::{Map, Value};

#[test]
fn messages_are_as_written() {
    golden::assert_lines_of_each(env!("CARGO_MANIFEST_DIR"), "tests/binary/messages", results);
}

/// Returns the results for `input`, in which `CNI_ARGS` is a field.
fn results(input: &str) -> Vec<String> {
    let least = read(r#"{"ipam":{"subnet":"10.77.0.0/24"}}"#).expect("the least");
    let mut lines = vec![match read(input) {
        Ok(mut taken) => {
            taken.retain(|field| !least.contains(field));
            format!("taken: {}", taken.join(", "))
        }
        Err(error) => error.to_string(),
    }];
    let mut mistakes = Mistakes::of(Command::Del);
    if let Err(error) = Place::parse(&conf(input).0, &mut mistakes) {
        lines.push(format!("DEL: {error}"));
    }
    lines
}

/// Returns the configuration `input` and its `CNI_ARGS`. Adds a version and a name if they are missing.
fn conf(input: &str) -> (Map<String, Value>, String) {
    let conf: Value = serde_json::from_str(input).unwrap_or_else(|e| panic!("{input}: {e}"));
    let mut conf = conf.as_object().expect(input).clone();
    for (field, value) in [("cniVersion", "1.1.0"), ("name", "net")] {
        conf.entry(field).or_insert_with(|| value.into());
    }
    let args = conf.remove("CNI_ARGS").unwrap_or_default();
    (conf, args.as_str().unwrap_or_default().to_owned())
}

/// Returns the settings that ADD reads.
fn read(input: &str) -> Result<Vec<String>, ConfError> {
    let (conf, args) = conf(input);
    let variables = [
        ("CNI_CONTAINERID", "a"),
        ("CNI_IFNAME", "rdma0"),
        ("CNI_NETNS", "/x"),
        ("CNI_ARGS", &args),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let environment = Environment::parse(variables.into(), Some(Command::Plan));
    let place = Place::parse(&conf, &mut Mistakes::refused())?;
    let plan = Plan::parse(&conf, &environment.expect("an environment"))?;
    let mut taken = golden::debug_fields(&format!("{plan:?}"));
    taken.push(format!("data_dir: {:?}", place.data_dir));
    taken.push(format!("conflicts: {:?}", conflicts(&conf)?));
    Ok(taken)
}
