// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin doctor pod NAME`: reports a pod's rails. For each rail it reports the indexes of its addresses'
//! GIDs, the GID at the index that the pod's programs pin (`--gid-index`), and the GIDs that NCCL chooses without a
//! pinned index. With `--to` it also sends RDMA requests from inside the pod.
//!
//! A GID table belongs to the RDMA device. In shared mode it has the addresses of all pods and of the node. The kernel
//! accepts any of these GIDs for a queue pair, so it does not refuse a wrong index. Packets then leave with another
//! pod's address, or with an address that is not routed.

use crate::{
    arguments::{Question, below},
    gather::netns_below,
};
use anyhow::{Result, bail};
use attachments::{Attachment, Rail, RailGid, Store};
use conf_reader::one_line;
use rdma_netns::{GidKind, GidTable, Kernel, Pod as _};
use rdma_resources::nccl::{Choice, Family};
use std::{collections::BTreeSet, ffi::OsString, fmt::Write as _, net::IpAddr, path::Path};

/// Returns the report as text. With `--to`, also returns the arguments with which `rdma-device-plugin` sends the
/// requests.
///
/// # Errors
/// No record names the pod, or the boot id or the records cannot be read. With `--to`: one of the names belongs to no
/// pod, or to several pods.
pub fn answer<K: Kernel>(
    kernel: &K,
    question: &Question,
) -> Result<(String, Option<Vec<OsString>>)> {
    let (root, state_dir) = (&question.root, &question.state_dir);
    let boot_id = kernel.boot_id()?;
    let all = Store::new(&below(root, state_dir)).of_boot(&boot_id)?;
    let is_it = |it: &&Attachment| {
        it.pod
            .as_deref()
            .is_some_and(|pod| fits(&question.pod, pod))
    };
    let mut text = String::new();
    for attachment in all.iter().filter(is_it) {
        let name = attachment.pod.as_deref().unwrap_or_default();
        let _ = writeln!(text, "{}, {}", one_line(name), attachment.key);
        // the GID table of a moved RDMA device is in the pod's namespace
        let pod = attachment
            .moves_rdma()
            .then(|| opened(kernel, root, attachment));
        for rail in &attachment.rails {
            let table = |(rdma, port): (&str, u32)| {
                let pod = pod.as_ref().map(Result::as_ref).transpose()?;
                let table = kernel.gids(pod, rdma, port);
                table.map_err(|error| error.to_string())
            };
            text.push_str(&of_rail(rail, question.gid_index, &owners(&all), table));
        }
    }
    match text.is_empty() {
        true => bail!(
            "no pod {:?} has rails on this node, according to the records in {}: run kubectl get pod -o wide to see \
             the pod's node",
            question.pod,
            state_dir.display()
        ),
        false => Ok((text, ping(question, &all)?)),
    }
}

/// Returns the arguments with which `rdma-device-plugin` sends RDMA requests to `--to` from inside the pod. Returns
/// `None` without `--to`.
///
/// # Errors
/// One of the two names belongs to no pod in `all`, or to several pods.
fn ping(question: &Question, all: &[Attachment]) -> Result<Option<Vec<OsString>>> {
    let Some(to) = &question.to else {
        return Ok(None);
    };
    let pods: BTreeSet<&str> = all.iter().filter_map(|it| it.pod.as_deref()).collect();
    let from = only(&pods, &question.pod)?;
    let to = match to.parse::<IpAddr>() {
        Ok(_) => to,
        Err(_) => only(&pods, to)?,
    };
    let mut line: Vec<OsString> = ["rdma-device-plugin", "ping", "--pod", from, to]
        .map(OsString::from)
        .into();
    line.extend(["--state-dir".into(), question.state_dir.clone().into()]);
    line.extend(question.json.then(|| "--json".into()));
    Ok(Some(line))
}

fn only<'a>(pods: &BTreeSet<&'a str>, name: &str) -> Result<&'a str> {
    let all: Vec<&str> = pods.iter().filter(|it| fits(name, it)).copied().collect();
    match all.as_slice() {
        [] => bail!(
            "no pod {name:?} has rails on this node: give --to an address of its rails, or run `kubectl rdma ping` for a \
             pod of another node"
        ),
        [one] => Ok(one),
        all => bail!(
            "{name:?} is the name of several pods: {}; give the namespace too",
            all.join(", ")
        ),
    }
}

/// Opens the pod's namespace. Returns an error if another namespace is at its path now.
fn opened<K: Kernel>(kernel: &K, root: &Path, attachment: &Attachment) -> Result<K::Pod, String> {
    let pod = kernel.open_pod(&netns_below(root, attachment));
    let pod = pod.map_err(|error| error.to_string())?;
    match pod.id() == attachment.netns_id {
        true => Ok(pod),
        false => Err("the pod's network namespace is gone".to_owned()),
    }
}

/// Returns true if `name` is the name of `pod`, with or without its Kubernetes namespace.
fn fits(name: &str, pod: &str) -> bool {
    pod == name || pod.split_once('/').is_some_and(|(_, it)| it == name)
}

/// A pod, and one of its rails.
type Owner<'a> = (&'a str, &'a Rail);

fn owners(all: &[Attachment]) -> Vec<Owner<'_>> {
    let of = |it| {
        let Attachment { pod, rails, .. }: &Attachment = it;
        let pod = pod.as_deref().unwrap_or("a pod");
        rails.iter().map(move |rail| (pod, rail))
    };
    all.iter().flat_map(of).collect()
}

fn of_rail(
    rail: &Rail,
    index: u32,
    owners: &[Owner<'_>],
    table: impl FnOnce((&str, u32)) -> Result<GidTable, String>,
) -> String {
    let Some(rdma) = &rail.rdma else {
        return format!("  {}: it has no RDMA device\n", rail.pod_name);
    };
    let port = rail.gids.first().map_or(1, |gid| gid.port);
    let mut text = format!("  {}: {} port {port}\n", rail.pod_name, rdma.name);
    for RailGid { address, index, .. } in &rail.gids {
        let _ = writeln!(text, "    {address}: GID index {index}");
    }
    let table = match table((&rdma.name, port)) {
        Ok(table) => table,
        Err(why) => {
            let _ = writeln!(text, "    NCCL_IB_GID_INDEX={index}: not known: {why}");
            return text;
        }
    };
    // iWARP has one GID, which derives from the hardware address (`gid_tbl_len` of 1 in `erdma_get_port_immutable()`,
    // `drivers/infiniband/hw/erdma/erdma_verbs.c`)
    if table.size == 1 && rail.infiniband_port().is_none() {
        let verdict = match index {
            0 => "the device's only GID, with or without this variable",
            _ => "wrong: the device has one GID, with index 0",
        };
        let _ = writeln!(
            text,
            "    NCCL_IB_GID_INDEX={index}: {verdict}; with iWARP no GID derives from an IP address, and programs \
             connect by address (rdma_cm)"
        );
        return text;
    }
    let pinned = hit(&table, index, rail, owners);
    let _ = writeln!(text, "    NCCL_IB_GID_INDEX={index}: {pinned}");
    // on an InfiniBand port NCCL uses the port's own GID
    if rail.infiniband_port().is_none() {
        for family in Family::ALL {
            let taken = Choice {
                family,
                range: None,
            };
            let taken = taken.of(&table);
            let hit = hit(&table, taken, rail, owners);
            let _ = writeln!(
                text,
                "    NCCL_IB_ADDR_FAMILY={family} without NCCL_IB_GID_INDEX: index {taken}: {hit}"
            );
        }
    }
    text
}

/// Judges the GID at `index` of `table` for programs in the pod of `rail`, by the source address that their packets
/// would have.
fn hit(table: &GidTable, index: u32, rail: &Rail, owners: &[Owner<'_>]) -> String {
    let Some(gid) = table.gids.iter().find(|gid| gid.index == index) else {
        let (there, size) = (table.gids.len(), table.size);
        return format!("wrong: this index has no GID ({there} of {size} entries are used)");
    };
    let address = gid.address();
    let recorded = rail.gids.iter().find(|own| own.gid == gid.ip);
    let is_own = match recorded.map(|own| (own.index, table.own(own.gid, own.index))) {
        Some((index, None)) if gid.kind == GidKind::RoceV2 => {
            return format!(
                "not known: several netdevs have {address}, and none of their GIDs has the index {index} that ADD \
                 recorded: restart the pod"
            );
        }
        Some((_, own)) => own == Some(gid),
        // a moved netdev can lack a recorded GID, and its port has no other pod's GIDs
        None => rail.assigned.addresses.iter().any(|own| own.ip == address),
    };
    let is_link_local = matches!(address, IpAddr::V6(ip) if ip.is_unicast_link_local());
    match gid.kind {
        GidKind::RoceV2 if is_own => format!("right: {address}, RoCE v2, is the pod's own"),
        GidKind::InfinibandOrRoceV1 if rail.infiniband_port().is_some() => {
            format!("right: {address} is a GID of the InfiniBand port")
        }
        GidKind::InfinibandOrRoceV1 => {
            format!(
                "wrong: {address} is a GID of RoCE v1: no router forwards its packets, and peers with RoCE v2 do not \
                 answer"
            )
        }
        GidKind::RoceV2 if is_link_local => {
            format!("wrong: {address} is link-local, and is not routed")
        }
        GidKind::RoceV2 => {
            let has_it = |it: &&Owner<'_>| {
                let mut assigned = it.1.assigned.addresses.iter();
                assigned.any(|own| own.ip == address)
            };
            // prefer the pod to which ADD reported the GID
            let is_recorded = |it: &&Owner<'_>| {
                let mut recorded = it.1.gids.iter();
                recorded.any(|it| (it.index, it.gid) == (gid.index, gid.ip))
            };
            let others = owners.iter().filter(|it| it.1 != rail).filter(has_it);
            let owner = others.min_by_key(|it| !is_recorded(it));
            let whose = owner.map_or("the node or an unknown owner", |(pod, _)| pod);
            format!(
                "wrong: {address} belongs to {whose}; the pod's packets would have this source address"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rail() -> Rail {
        let assigned =
            json!({"addresses": [{"ip": "fd00::7", "prefix": 64}], "routes": [], "rules": []});
        let gid = json!({"address": "fd00::7", "gid": "fd00::7", "port": 1, "index": 5});
        let rdma = json!({"name": "mlx5_bond_0", "index": 0, "node_guid": ""});
        let rail = json!({"podName": "rdma0", "given": assigned, "rdma": rdma, "gids": [gid]});
        serde_json::from_value(rail).expect("a rail")
    }

    fn table(gids: &[(u32, &str, &str)]) -> GidTable {
        let gid = |(index, ip, kind): &(u32, &str, &str)| -> Value {
            json!({"index": index, "ip": ip, "kind": kind})
        };
        let gids: Vec<Value> = gids.iter().map(gid).collect();
        serde_json::from_value(json!({"size": 128, "gids": gids})).expect("a table")
    }

    #[test]
    fn a_pinned_index_is_compared_with_the_pods_own() {
        let table = table(&[
            (0, "fe80::1", "ib-or-roce-v1"),
            (1, "fe80::1", "roce-v2"),
            (2, "fd00::7", "ib-or-roce-v1"),
            (3, "fd00::1", "roce-v2"),
            (4, "fd00::8", "roce-v2"),
            (5, "fd00::7", "roce-v2"),
            (6, "::ffff:10.0.0.1", "roce-v2"),
        ]);
        let mut other = json!(rail());
        other["given"]["addresses"][0]["ip"] = json!("fd00::8");
        let other = serde_json::from_value(other).expect("a rail");
        let owners = [("default/other", &other)];
        for (index, expected) in [
            (1, "wrong: fe80::1 is link-local, and is not routed"),
            (
                2,
                "wrong: fd00::7 is a GID of RoCE v1: no router forwards its packets, and peers with RoCE v2 do not \
                 answer",
            ),
            (
                3,
                "wrong: fd00::1 belongs to the node or an unknown owner; the pod's packets would have this source \
                 address",
            ),
            (
                4,
                "wrong: fd00::8 belongs to default/other; the pod's packets would have this source address",
            ),
            (5, "right: fd00::7, RoCE v2, is the pod's own"),
            (
                6,
                "wrong: 10.0.0.1 belongs to the node or an unknown owner; the pod's packets would have this source \
                 address",
            ),
            (
                9,
                "wrong: this index has no GID (7 of 128 entries are used)",
            ),
        ] {
            assert_eq!(hit(&table, index, &rail(), &owners), expected);
        }
        let text = of_rail(&rail(), 5, &owners, |requested| {
            assert_eq!(requested, ("mlx5_bond_0", 1));
            Ok(table.clone())
        });
        assert_eq!(
            text,
            "  rdma0: mlx5_bond_0 port 1\n    fd00::7: GID index 5\n    NCCL_IB_GID_INDEX=5: right: fd00::7, RoCE v2, \
             is the pod's own\n    NCCL_IB_ADDR_FAMILY=AF_INET without NCCL_IB_GID_INDEX: index 6: wrong: 10.0.0.1 \
             belongs to the node or an unknown owner; the pod's packets would have this source address\n    \
             NCCL_IB_ADDR_FAMILY=AF_INET6 without NCCL_IB_GID_INDEX: index 3: wrong: fd00::1 belongs to the node or an \
             unknown owner; the pod's packets would have this source address\n"
        );
    }

    /// The GID table of a moved device has only the pod's addresses.
    #[test]
    fn nccls_default_is_the_pods_own_unless_another_comes_first() {
        let table = table(&[
            (0, "fe80::1", "ib-or-roce-v1"),
            (1, "fe80::1", "roce-v2"),
            (2, "fd00::7", "ib-or-roce-v1"),
            (3, "fd00::7", "roce-v2"),
        ]);
        let text = of_rail(&rail(), 3, &[], |_| Ok(table));
        let lines: Vec<&str> = text.lines().skip(3).collect();
        assert_eq!(
            lines,
            [
                "    NCCL_IB_ADDR_FAMILY=AF_INET without NCCL_IB_GID_INDEX: index 0: wrong: fe80::1 is a GID of RoCE \
                 v1: no router forwards its packets, and peers with RoCE v2 do not answer",
                "    NCCL_IB_ADDR_FAMILY=AF_INET6 without NCCL_IB_GID_INDEX: index 3: right: fd00::7, RoCE v2, is the \
                 pod's own",
            ]
        );
        let unknown = of_rail(&rail(), 3, &[], |_| Err("it is gone".to_owned()));
        assert!(
            unknown.ends_with("NCCL_IB_GID_INDEX=3: not known: it is gone\n"),
            "{unknown}"
        );
    }

    /// Pods on two VLANs of one NIC can have one address, and share the NIC's GID table.
    #[test]
    fn another_pods_gid_with_the_pods_address_is_not_the_pods() {
        let table = table(&[(4, "fd00::7", "roce-v2"), (5, "fd00::7", "roce-v2")]);
        let mut other = json!(rail());
        other["gids"][0]["index"] = json!(4);
        let other = serde_json::from_value(other).expect("a rail");
        let own = rail();
        let owners = [("default/own", &own), ("default/other", &other)];
        assert_eq!(
            hit(&table, 4, &own, &owners),
            "wrong: fd00::7 belongs to default/other; the pod's packets would have this source address"
        );
        assert_eq!(
            hit(&table, 5, &own, &owners),
            "right: fd00::7, RoCE v2, is the pod's own"
        );
    }

    /// A bond has failed over since ADD, and the kernel has set its GIDs again, at other indexes.
    #[test]
    fn a_gid_with_another_index_since_add_is_judged_by_its_address() {
        let one = table(&[(6, "fd00::7", "roce-v2")]);
        assert_eq!(
            hit(&one, 6, &rail(), &[]),
            "right: fd00::7, RoCE v2, is the pod's own"
        );
        let two = table(&[(6, "fd00::7", "roce-v2"), (7, "fd00::7", "roce-v2")]);
        assert_eq!(
            hit(&two, 6, &rail(), &[]),
            "not known: several netdevs have fd00::7, and none of their GIDs has the index 5 that ADD recorded: \
             restart the pod"
        );
    }

    /// Sysfs reports one format for InfiniBand's GIDs and those of RoCE v1.
    #[test]
    fn a_gid_of_an_infiniband_port_is_no_gid_of_roce_v1() {
        let link = json!({
            "index": 4, "name": "ib0", "mtu": 2044, "up": true, "link_type": "infiniband",
            "mac": "80:00:00:41:fe:80:00:00:00:00:00:00:02:c9:03:00:21:6e:70:01",
        });
        let mut rail = json!(rail());
        rail["home"] = link;
        rail["rdma"]["ports"] = json!([{"number": 1, "netdev": 4, "state": 4}]);
        let rail = serde_json::from_value(rail).expect("a rail");
        let table = table(&[(0, "fe80::2c9:300:216e:7001", "ib-or-roce-v1")]);
        assert_eq!(
            hit(&table, 0, &rail, &[]),
            "right: fe80::2c9:300:216e:7001 is a GID of the InfiniBand port"
        );
    }

    #[test]
    fn iwarp_has_one_gid_of_no_address() {
        let one = GidTable {
            size: 1,
            ..table(&[(0, "5254:ee:1::", "ib-or-roce-v1")])
        };
        for (index, expected) in [
            (0, "the device's only GID"),
            (3, "wrong: the device has one GID, with index 0"),
        ] {
            let text = of_rail(&rail(), index, &[], |_| Ok(one.clone()));
            let line = format!("    NCCL_IB_GID_INDEX={index}: {expected}");
            assert!(text.contains(&line) && text.contains("iWARP"), "{text}");
            assert!(!text.contains("RoCE"), "{text}");
        }
    }

    #[test]
    fn a_pod_is_named_with_its_namespace_or_without() {
        assert!(fits("trainer-0", "default/trainer-0"));
        assert!(fits("default/trainer-0", "default/trainer-0"));
        assert!(!fits("other/trainer-0", "default/trainer-0"));
        assert!(!fits("trainer", "default/trainer-0"));
    }

    #[test]
    fn the_pods_of_a_ping_are_one_each() {
        let pods = BTreeSet::from(["a/x", "b/x", "b/y"]);
        let named = |name: &str| only(&pods, name).map_err(|it| it.to_string());
        assert_eq!(named("y"), Ok("b/y"));
        assert_eq!(named("a/x"), Ok("a/x"));
        assert_eq!(
            named("x"),
            Err("\"x\" is the name of several pods: a/x, b/x; give the namespace too".to_owned())
        );
        let missing = named("z").expect_err("no pod");
        assert!(missing.starts_with("no pod \"z\" has rails on this node: give --to an address"));
    }
}
