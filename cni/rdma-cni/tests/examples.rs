// SPDX-License-Identifier: Apache-2.0
//! Tests that the plugin accepts the examples in `conf/`.

use network_conf::Conf;
use serde_json::Value;
use std::{fs, path::Path};

#[test]
fn every_example_is_a_valid_configuration() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conf");
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
            if plugin["type"] != "rdma-cni" && plugin["type"] != "rdma" {
                continue;
            }
            // adds the fields that a runtime passes to the plugin
            let mut input = plugin.as_object().unwrap().clone();
            input.insert("name".into(), list["name"].clone());
            input.insert("cniVersion".into(), list["cniVersion"].clone());
            let conf = Conf::parse(input).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            conf.required_devices()
                .unwrap_or_else(|error| panic!("{path:?}: {error}"));
            ours += 1;
        }
    }
    assert_eq!(ours, 6, "examples in {folder:?}");
}
