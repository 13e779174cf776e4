// SPDX-License-Identifier: Apache-2.0
//! Recognizes a second call of this plugin within one ADD of the runtime. The runtime calls the plugin twice if both
//! the network's list and the network's directory have the entry: libcni appends the directory's plugins to the list
//! (`NetworkConfFromFile()`, `libcni/conf.go`, since 1.3). The first call attaches the devices. The second call returns
//! `prevResult`.

use crate::{error::Error, node::Node};
use attachments::{Attachment, Key, store::Record};
use network_conf::Conf;
use rdma_netns::{Kernel, Pod};
use serde_json::Value;

/// Returns the result to pass on if an earlier call in this ADD attached the devices of `key`. Returns `None` for any
/// other call, also in two similar cases:
///
/// - The runtime repeats the whole ADD, so `prevResult` has no rails.
/// - The entry requests other devices than the earlier call.
pub(super) fn result<K: Kernel>(
    node: &Node<'_, K>,
    key: &Key,
    pod: &K::Pod,
) -> Result<Option<Value>, Error> {
    let Some(previous) = &node.conf.network.prev_result else {
        return Ok(None);
    };
    let Record::Good(attachment) = node.store.load(key).map_err(Error::State)? else {
        return Ok(None);
    };
    let is_second = attachment.netns_id == pod.id()
        && has_rails(previous, &attachment, pod)
        && is_same_request(&attachment, node.conf)
        && attachment.is_settled(node.kernel, &node.kernel.boot_id()?);
    Ok(is_second.then(|| previous.clone()))
}

/// Returns true if `result` has every interface that the first call added. Returns false for an attachment without
/// interfaces: libcni removes `rails` from the result, so nothing shows that the first call belongs to this ADD.
fn has_rails(result: &Value, attachment: &Attachment, pod: &impl Pod) -> bool {
    let interfaces = result["interfaces"].as_array();
    let sandbox = pod.path().to_str();
    let is_there = |name: &str| {
        let mut all = interfaces.into_iter().flatten();
        all.any(|it| it["name"] == name && it["sandbox"].as_str() == sandbox)
    };
    let mut ours = attachment.rails.iter().filter(|rail| rail.is_ours());
    let has_one = ours.clone().next().is_some();
    has_one && ours.all(|rail| is_there(&rail.pod_name))
}

/// Returns true if `conf` requests the same devices, and the same interface names in the pod, as the recorded ADD.
fn is_same_request(attachment: &Attachment, conf: &Conf) -> bool {
    Conf::parse(attachment.config.clone()).is_ok_and(|before| {
        before.devices == conf.devices && before.interface_name == conf.interface_name
    })
}
