// SPDX-License-Identifier: Apache-2.0
//! Inputs that the runtime and other plugins hand over.

use crate::assert_one_line;
use cni_protocol::{
    Environment, SpecVersion,
    environment::is_identifier,
    result::{self, RailResult},
    version::SUPPORTED,
};
use rdma_cni::ipam::{Answer, IpamError};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The environment, `NAME=value` with a NUL or a line feed behind each, as in `/proc/PID/environ`.
///
/// # Panics
/// A message has several lines; what is checked does not hold; `CNI_ARGS` loses something.
pub fn environment(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let variables = text.split(['\0', '\n']).filter_map(|it| it.split_once('='));
    let all: BTreeMap<String, String> = variables
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let environment = match Environment::parse(all.clone(), None) {
        Ok(environment) => environment,
        Err(error) => return assert_one_line(&error),
    };
    if let Some(target) = &environment.target {
        assert!(is_identifier(&target.container) && target.container.len() <= 200);
        assert!(!target.interface.contains(['/', ':']) && target.interface.len() <= 15);
    }
    assert_eq!(environment.all, all);
    let pairs = environment
        .args
        .iter()
        .map(|(key, value)| format!("{key}={value}"));
    let mut again = all;
    again.insert("CNI_ARGS".to_owned(), pairs.collect::<Vec<_>>().join(";"));
    let again = Environment::parse(again, None).expect("the same");
    assert_eq!(again.args, environment.args);
}

/// `prevResult`, which earlier plugins made, and ours behind it. The first byte chooses the version.
///
/// # Panics
/// Something of theirs is changed, or ours is not found.
pub fn prev_result(input: &[u8]) {
    let Some((version, text)) = input.split_first() else {
        return;
    };
    let version: SpecVersion = SUPPORTED[usize::from(*version) % SUPPORTED.len()];
    let Ok(Value::Object(previous)) = serde_json::from_slice(text) else {
        return;
    };
    let previous = Value::Object(previous);
    let rail = RailResult {
        name: "rdma0".into(),
        mac: "02:00:00:00:00:01".into(),
        mtu: 9000,
        sandbox: "/run/netns/a".into(),
        device: Some("0000:3b:00.2".into()),
        ips: vec![json!({"address": "fd00::2/64"})],
        routes: vec![json!({"dst": "::/0", "gw": "fd00::1", "priority": 200})],
        dns: Some(json!({"nameservers": ["fd00::53"]})),
    };
    let made = result::extend(Some(&previous), version, &[rail]);
    for (name, theirs) in previous.as_object().expect("an object") {
        let ours = &made[name];
        match name.as_str() {
            "interfaces" | "ips" | "routes" => {
                let theirs = theirs.as_array().map_or(&[][..], Vec::as_slice);
                let ours = ours.as_array().expect("a list");
                assert_eq!(ours[..theirs.len()], *theirs, "{name}");
                assert_eq!(ours.len(), theirs.len() + 1, "{name}");
            }
            _ => assert_eq!(ours, theirs, "{name}"),
        }
    }
    // one of theirs may have its name
    let theirs = result::find_interface(&previous, "rdma0");
    let found = result::find_interface(&made, "rdma0").expect("it is there");
    if theirs.is_none() {
        // an address of theirs may name an interface that is not there
        let ours = ("fd00::2".parse().expect("an address"), 64);
        assert!(found.addresses.contains(&ours));
    }
}

/// Output of an IPAM plugin at ADD, as an answer and as an error.
///
/// # Panics
/// A message has several lines, or is long; an address is none.
pub fn ipam_answer(input: &[u8]) {
    let refused = IpamError::refused(
        "an-ipam-plugin",
        "ADD",
        input,
        "the plugin ended without a CNI error",
    );
    assert!(refused.to_string().chars().count() < 600);
    assert_one_line(&refused);
    let answer = match Answer::parse("an-ipam-plugin", input) {
        Ok(answer) => answer,
        Err(error) => {
            assert!(error.to_string().chars().count() < 600);
            return assert_one_line(&error);
        }
    };
    assert_eq!(answer.desired.addresses.len(), answer.ips.len());
    assert_eq!(answer.desired.routes.len(), answer.routes.len());
    for address in &answer.desired.addresses {
        let longest = if address.ip.is_ipv4() { 32 } else { 128 };
        assert!(address.prefix <= longest);
    }
    // as the result has them
    let rail = RailResult {
        ips: answer.ips,
        routes: answer.routes,
        dns: answer.dns,
        ..RailResult::default()
    };
    for version in SUPPORTED {
        result::extend(None, version, std::slice::from_ref(&rail));
    }
}
