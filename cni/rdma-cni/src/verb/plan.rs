// SPDX-License-Identifier: Apache-2.0
//! `rdma-cni plan`, for administrators. Prints the changes that ADD would make, each as a command such as `ip` or
//! `rdma`. Reads the same state as ADD, and changes nothing.

use super::draft;
use crate::{claims, error::Error, node::Node, vf};
use rdma_netns::{Kernel, Pod};
use std::fmt::Write as _;

/// Returns the changes, one per line.
pub fn plan<K: Kernel>(node: &Node<'_, K>) -> Result<String, Error> {
    let (_, key) = node.target()?;
    let Some(choice) = node.choice()? else {
        return Ok("# nothing: kubelet allocated no device to the pod\n".to_owned());
    };
    let conf = claims::of_pod(node.conf, &choice)?;
    let node = &node.with_conf(&conf);
    node.conf.check_drop_in()?;
    node.conf.check_ib_kubernetes()?;
    let pod = node.pod()?;
    let mut observed = node.observe(&choice, Some(&pod))?;
    let others = node.store.living(node.kernel, &observed.boot_id);
    let others = others.map_err(Error::State)?;
    if others.iter().any(|other| other.key == key) {
        return Err(Error::Exists(key.to_string()));
    }
    let (mut attachment, remarks) = draft::draft(node, &choice, &key, &pod, &observed, &others)?;
    remarks.iter().for_each(plan::select::Remark::log);
    vf::observe(node.kernel, &attachment, &mut observed)?;
    let name = pod.path().file_name().unwrap_or_default().to_string_lossy();
    let mut text = String::new();
    draft::give(&mut attachment, &observed);
    for op in plan::attach(&attachment, &observed)? {
        let _ = writeln!(text, "{}", op.command(&name));
    }
    if let Some(ipam) = &attachment.ipam {
        let _ = writeln!(
            text,
            "# then the addresses and routes that IPAM plugin {ipam:?} assigns"
        );
    }
    text += &smcr::apply::preview(
        node.smcr(),
        node.conf.smc.requirement()?,
        &pod,
        &attachment,
        &observed,
        &name,
    )?;
    Ok(text)
}
