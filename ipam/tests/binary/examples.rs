// SPDX-License-Identifier: Apache-2.0
//! Tests that the examples in `conf/` are valid for the plugin.

use cni_protocol::{Command, Environment, Mistakes};
use rdma_ipam::conf::{Place, Plan};
use serde_json::Value;
use std::{fs, path::Path};

#[test]
fn every_example_is_a_valid_configuration() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf");
    let mut ours = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "conflist")
        {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        for plugin in list["plugins"].as_array().unwrap() {
            if plugin["ipam"]["type"] != "rdma-ipam" {
                continue;
            }
            // adds the fields that `rdma-cni` passes
            let mut input = plugin.as_object().unwrap().clone();
            input.insert("name".into(), list["name"].clone());
            input.insert("cniVersion".into(), list["cniVersion"].clone());
            input.insert("master".into(), "eth0".into());
            let environment = Environment::parse(
                [
                    ("CNI_CONTAINERID", "a"),
                    ("CNI_IFNAME", "rdma0"),
                    ("CNI_NETNS", "/x"),
                ]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
                Some(Command::Plan),
            );
            Place::parse(&input, &mut Mistakes::refused())
                .unwrap_or_else(|error| panic!("{path:?}: {error}"));
            Plan::parse(&input, &environment.unwrap())
                .unwrap_or_else(|error| panic!("{path:?}: {error}"));
            ours += 1;
        }
    }
    assert_eq!(ours, 5, "examples in {folder:?}");
}
