// SPDX-License-Identifier: Apache-2.0
//! Tests of Allocate's request for an observation of the hardware.

use super::*;
use crate::kubelet::streams::End;
use daemon_conf::Conf;
use node_state::{hardware::Hardware, node::Signal};
use offer::{PreviousOffers, Unhealthy, offers};
use serde_json::json;
use std::path::Path;
use tokio::sync::{Notify, mpsc, watch};

/// The signals in the full queue cause no observation.
#[tokio::test(flavor = "current_thread")]
async fn allocate_requests_an_observation_although_the_queue_is_full() {
    let root = tempfile::tempdir().expect("a directory");
    let at = |name: &str| root.path().join(name);
    let hardware = Hardware::new(&at("sys"), &at("dev"));
    let gone =
        json!({"address": "0000:3b:00.0", "driver": "mlx5_core", "hcas": [{"name": "mlx5_0"}]});
    let gone = serde_json::from_value(gone).expect("a function");
    let mut inventory = hardware.observe().expect("observed");
    inventory.functions.push(gone);
    let conf = r#"{"resources":[{"name":"rdma/hca","kind":"shared"}]}"#;
    let parsed = Conf::parse(conf, Path::new("conf.json")).expect("a configuration");
    let (none, previous) = (BTreeSet::new(), PreviousOffers::default());
    let unhealthy = Unhealthy::default();
    let (offers, _) = offers(&parsed.conf, &inventory, &none, &unhealthy, &previous);
    let node = Node {
        conf: Arc::new(parsed.conf),
        inventory: Arc::new(inventory),
        unhealthy,
        offers,
        ..Node::default()
    };
    let (signals, _queue) = mpsc::channel(1);
    signals.try_send(Signal::Configuration).expect("room");
    let observe = Arc::new(Notify::new());
    let context = Arc::new(PluginContext {
        signals,
        observe: observe.clone(),
        ..PluginContext::below(root.path(), Arc::new(node))
    });
    let resource = ResourceName::new("rdma/hca").expect("a name");
    let streams = Streams::new(resource.clone(), &context, watch::channel(End::NotYet).1);
    let service = Service::new(resource, streams, context);
    let request = ContainerAllocateRequest {
        devices_i_ds: vec!["0".to_owned()],
    };
    let answer = service.answers(&[request]).await;
    assert!(answer.is_err(), "the device is gone: {answer:?}");
    let requested = timeout(Duration::ZERO, observe.notified()).await;
    assert!(requested.is_ok(), "no observation is requested");
}
