// SPDX-License-Identifier: Apache-2.0
//! Input that `rdma-cni` gets from the runtime and from other plugins.

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

/// The environment: `NAME=value`, each followed by a NUL or a line feed, as in `/proc/PID/environ`.
///
/// # Panics
/// A message has several lines; an id or name is accepted that is not valid; `CNI_ARGS` differs when it is written and
/// read again.
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

/// `prevResult` of earlier plugins, to which `rdma-cni` adds its own result. The first byte chooses the version.
///
/// # Panics
/// A part of the earlier result is changed, or our interface is missing.
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
    // an earlier plugin may have an interface of this name
    let theirs = result::find_interface(&previous, "rdma0");
    let found = result::find_interface(&made, "rdma0").expect("it is there");
    if theirs.is_none() {
        // an earlier address may have the index of an interface that did not exist
        let ours = ("fd00::2".parse().expect("an address"), 64);
        assert!(found.addresses.contains(&ours));
    }
}

/// Output of an IPAM plugin at ADD, read as a result and as an error.
///
/// # Panics
/// A message has several lines, or is long; a prefix length is not valid.
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
    // adds the answer to results of all versions
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
