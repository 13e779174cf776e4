// SPDX-License-Identifier: Apache-2.0
//! CHECK: succeeds if the present state equals the recorded state. CHECK describes each operation of the plan between
//! these states as a difference, and also differences that no plan corrects, such as another GID index.

use crate::{
    apply,
    error::Error,
    gids,
    ipam::{Ipam, RailCall},
    node::Node,
};
use attachments::{Attachment, DesiredLink, Key, Rail, store::Record};
use cni_protocol::{Command, SpecVersion, result};
use ipnetwork::IpNetwork;
use network_conf::{Devices, ResultIps};
use plan::{self, drift, select::Choice};
use rdma_netns::{Kernel, Link, Namespace, Pod, Route};
use serde_json::Value;
use std::{fmt::Write as _, net::IpAddr};

/// Compares the present state of the attachment with its record and with the chain's final result.
pub fn check<K: Kernel>(node: &Node<'_, K>) -> Result<(), Error> {
    node.conf.network.since("CHECK", SpecVersion::V0_4_0)?;
    let (_, key) = node.target()?;
    let previous = node.conf.network.required_prev_result()?;
    let attachment = match node.store.load(&key).map_err(Error::State)? {
        Record::Good(attachment) => *attachment,
        Record::None => return without_record(node, &key),
        Record::Newer(format) => return Err(Error::Newer { key, format }),
        Record::Corrupt(reason) => {
            return Err(Error::Drift(vec![format!(
                "the record of {key} is unreadable: {reason}"
            )]));
        }
    };
    let pod = node.pod()?;
    if pod.id() != attachment.netns_id {
        let was = attachment.netns.display();
        return Err(Error::Drift(vec![format!(
            "CNI_NETNS is not the namespace in which ADD attached the devices ({was})"
        )]));
    }
    node.kernel
        .limit_observation(Some(attachment.devices().into()));
    let observed = node.kernel.observe_vfs(Some(&pod), &attachment.vfs())?;
    let (mut drift, mut left) = (vec![], vec![]);
    // one plan per rail: a difference of one rail must not hide a difference of another
    for (index, rail) in attachment.rails.iter().enumerate() {
        // the MTU of the final result counts, because a later plugin may have changed the MTU
        let mtu = result::find_interface(previous, &rail.pod_name).and_then(|it| it.mtu);
        let mtu = mtu.or(attachment.mtu);
        let expected = Attachment {
            mtu,
            ..attachment.clone()
        };
        let desired = desired(&attachment, index, rail, previous);
        if let Some(pod) = &observed.pod {
            drift.extend(connected_drift(rail, &desired, pod));
        }
        left.extend(desired.addresses.iter().map(|address| address.ip));
        match plan::attach_rail(&expected, rail, &observed, &desired) {
            Ok(ops) => drift.extend(ops.iter().map(|op| drift::describe(op, &observed))),
            Err(obstacle) => drift.push(obstacle.to_string()),
        }
    }
    let renamed = plan::renamed([&attachment], &observed);
    drift.extend(renamed.iter().map(|op| drift::describe(op, &observed)));
    let other = plan::attach_other_interfaces(&attachment, &observed);
    drift.extend(other.iter().map(|op| drift::describe(op, &observed)));
    if let Some(namespace) = &observed.pod {
        let rails = attachment.rails.iter();
        drift.extend(rails.filter_map(|rail| mac_drift(rail, namespace, previous)));
    }
    drift.extend(drift::of_children(&attachment, &observed));
    drift.extend(drift::of_mode(&attachment, &observed));
    drift.extend(gids::drift(node.kernel, &pod, &attachment, &left));
    drift.extend(smcr::apply::drift(
        node.smcr(),
        &pod,
        &attachment,
        &observed,
    )?);
    drift.extend(apply::misplaced(&attachment, &observed).map(|error| error.to_string()));
    if !drift.is_empty() {
        return Err(Error::Drift(drift));
    }
    check_addresses(node, &attachment, &pod)
}

/// Succeeds if kubelet allocated nothing to the pod, so that ADD attached nothing.
fn without_record<K: Kernel>(node: &Node<'_, K>, key: &Key) -> Result<(), Error> {
    let mut drift = format!("there is no record of {key}");
    if let Some(Devices::Resources(_)) = &node.conf.devices {
        let Some(Choice::Allocated(meanings)) = node.choice()? else {
            return Ok(());
        };
        let ids: Vec<String> = meanings.iter().map(|it| it.id.to_string()).collect();
        let _ = write!(
            drift,
            ", although kubelet allocated {} to its pod",
            ids.join(", ")
        );
    }
    Err(Error::Drift(vec![drift]))
}

/// Returns the state that ADD set. Omits addresses and routes of ADD's result that the chain's final result lacks,
/// because a later plugin may have removed them from the pod. Also omits the rules of omitted addresses. If ADD's
/// result has no addresses (`resultIPs`), omits nothing: a later plugin can then remove an address only together with
/// the interface. Returns an empty state if the final result lacks the interface.
fn desired(attachment: &Attachment, index: usize, rail: &Rail, result: &Value) -> DesiredLink {
    let Some(interface) = result::find_interface(result, &rail.pod_name) else {
        return DesiredLink::default();
    };
    let mut desired = rail.assigned.clone();
    if attachment.result_ips == ResultIps::None {
        return desired;
    }
    let table = attachment.table(index);
    desired
        .addresses
        .retain(|address| interface.addresses.contains(&(address.ip, address.prefix)));
    let routes = result["routes"].as_array().into_iter().flatten();
    let destinations: Vec<IpNetwork> = routes
        .filter_map(|route| route["dst"].as_str()?.parse().ok())
        .collect();
    let is_left = |ip: IpAddr| desired.addresses.iter().any(|address| address.ip == ip);
    desired.rules.retain(|rule| is_left(rule.from));
    let ruled: Vec<bool> = desired.rules.iter().map(|it| it.from.is_ipv4()).collect();
    desired.routes.retain(|route| {
        if Some(route.table) == table {
            // the kernel removes a route when it removes the route's source address
            return ruled.contains(&route.destination.is_ipv4())
                && route.source.is_none_or(is_left);
        }
        let is_it =
            |dst: &IpNetwork| dst.network() == route.destination && dst.prefix() == route.prefix;
        destinations.iter().any(is_it)
    });
    desired
}

fn mac_drift(rail: &Rail, namespace: &Namespace, previous: &Value) -> Option<String> {
    let desired = result::find_interface(previous, &rail.pod_name)?.mac?;
    let Link { name, mac, .. } = namespace.link(&rail.pod_name).filter(|_| rail.is_ours())?;
    let differs = !mac.to_string().eq_ignore_ascii_case(desired);
    differs.then(|| format!("the hardware address of {name} is {mac}, not {desired}"))
}

/// Describes differences of connected routes. A plan has no such routes, because the kernel makes them when an address
/// is set.
fn connected_drift(rail: &Rail, desired: &DesiredLink, namespace: &Namespace) -> Vec<String> {
    let Some(Link { name, routes, .. }) = namespace.link(&rail.pod_name).filter(|link| link.up)
    else {
        return vec![];
    };
    let addresses = desired.addresses.iter();
    // if ADD sets no metric, the kernel may have chosen any metric
    let connected = addresses.filter_map(plan::connected);
    let connected = connected.filter_map(|route| Some((route.metric?, route)));
    let is_missing = |(metric, desired): &(u32, Route)| {
        let is_it = |it: &Route| it.same_destination(desired) && it.metric == Some(*metric);
        !routes.iter().any(is_it)
    };
    let words = |(
        metric,
        Route {
            destination,
            prefix,
            ..
        },
    )| {
        format!("{name} has lost its route to {destination}/{prefix} with metric {metric}")
    };
    connected.filter(is_missing).map(words).collect()
}

fn check_addresses<K: Kernel>(
    node: &Node<'_, K>,
    attachment: &Attachment,
    pod: &K::Pod,
) -> Result<(), Error> {
    let Some(name) = &attachment.ipam else {
        return Ok(());
    };
    let mut config = node.conf.raw.clone();
    if let (ResultIps::None, Some(previous)) = (attachment.result_ips, config.get_mut("prevResult"))
    {
        // add the rails' addresses: an IPAM plugin may search for them in `prevResult`, as the reference plugin
        // `static` does
        for rail in &attachment.rails {
            let addresses = rail.assigned.addresses.iter();
            let addresses = addresses.filter_map(|it| IpNetwork::new(it.ip, it.prefix).ok());
            let routers = &rail.assigned.gateways;
            let router = |it: IpNetwork| routers.iter().copied().find(|ip| it.contains(*ip));
            let addresses = addresses.map(|it| (it, router(it)));
            result::add_addresses(
                previous,
                &rail.pod_name,
                addresses,
                node.conf.network.version,
            );
        }
    }
    let ipam = Ipam::find(name, node.environment, &config)?;
    let netns = pod.path().display().to_string();
    for rail in attachment.rails.iter().filter(|rail| rail.is_ours()) {
        let call = RailCall {
            args: attachment.args.as_deref(),
            container: &attachment.key.container,
            netns: Some(&netns),
            pod_name: &rail.pod_name,
            master: rail.name(),
            conflicts: &[],
        };
        ipam.rail(Command::Check, call)?;
    }
    Ok(())
}
