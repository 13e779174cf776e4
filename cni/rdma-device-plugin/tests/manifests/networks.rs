// SPDX-License-Identifier: Apache-2.0
//! Tests of networks for Multus: `NetworkAttachmentDefinition`s, whose `config` Kubernetes does not
//! check.

use crate::{documents, yaml_files};
use cni_protocol::{Command, Environment, Mistakes};
use network_conf::{Conf, Devices};
use rdma_ipam::conf::{Place, Plan};
use serde_json::{Map, Value};
use std::{collections::BTreeMap, path::PathBuf};

/// Returns each definition's file, its annotations, and its CNI list.
fn networks() -> Vec<(PathBuf, Value, Value)> {
    let files = yaml_files("conf/examples/multus").into_iter();
    let objects = files.flat_map(|file| {
        documents(&file)
            .into_iter()
            .map(move |it| (file.clone(), it))
    });
    let networks = objects.filter(|(_, object)| object["kind"] == "NetworkAttachmentDefinition");
    networks
        .map(|(file, object)| {
            let config = object["spec"]["config"].as_str().expect("a text");
            let list =
                serde_json::from_str(config).unwrap_or_else(|error| panic!("{file:?}: {error}"));
            (file, object, list)
        })
        .collect()
}

/// Returns a plugin's input as the runtime writes it. If the network has a resource, Multus adds
/// the device.
fn input(network: &Value, list: &Value, plugin: &Value) -> Map<String, Value> {
    let mut input = plugin.as_object().expect("an object").clone();
    for field in ["name", "cniVersion"] {
        input.insert(field.into(), list[field].clone());
    }
    if network["metadata"]["annotations"]["k8s.v1.cni.cncf.io/resourceName"].is_string() {
        input.insert("deviceID".into(), "0000:3b:00.2".into());
    }
    input
}

#[test]
fn every_network_is_a_valid_configuration() {
    let mut ours = 0;
    for (file, network, list) in networks() {
        assert_eq!(network["metadata"]["name"], list["name"], "{file:?}");
        for plugin in list["plugins"].as_array().expect("plugins") {
            if plugin["type"] != "rdma-cni" && plugin["type"] != "rdma" {
                continue;
            }
            let input = input(&network, &list, plugin);
            let conf = Conf::parse(input).unwrap_or_else(|error| panic!("{file:?}: {error}"));
            let devices = conf
                .required_devices()
                .unwrap_or_else(|error| panic!("{file:?}: {error}"));
            // the list of kubelet's allocations would contain devices of other networks, too
            assert!(!matches!(devices, Devices::Resources(_)), "{file:?}");
            ours += 1;
        }
    }
    assert_eq!(ours, 3);
}

#[test]
fn every_network_has_addresses() {
    let environment: BTreeMap<String, String> = [
        ("CNI_CONTAINERID", "a"),
        ("CNI_IFNAME", "rdma0"),
        ("CNI_NETNS", "/x"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let environment = Environment::parse(environment, Some(Command::Plan)).expect("an environment");
    let mut ours = 0;
    for (file, network, list) in networks() {
        for plugin in list["plugins"].as_array().expect("plugins") {
            if plugin["ipam"]["type"] != "rdma-ipam" {
                continue;
            }
            let mut input = input(&network, &list, plugin);
            input.insert("master".into(), "eth0".into());
            Place::parse(&input, &mut Mistakes::refused())
                .unwrap_or_else(|error| panic!("{file:?}: {error}"));
            Plan::parse(&input, &environment).unwrap_or_else(|error| panic!("{file:?}: {error}"));
            ours += 1;
        }
    }
    assert_eq!(ours, 2);
}

/// The file of a pod also contains the network that the pod names.
#[test]
fn pods_name_networks_that_there_are() {
    let networks = networks();
    let mut named = 0;
    for file in yaml_files("conf/examples/multus") {
        for pod in documents(&file).iter().filter(|it| it["kind"] == "Pod") {
            let name = &pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"];
            let there =
                |it: &(PathBuf, Value, Value)| it.0 == file && it.1["metadata"]["name"] == *name;
            assert!(networks.iter().any(there), "{file:?}: {name}");
            named += 1;
        }
    }
    assert_eq!(named, 2);
}
