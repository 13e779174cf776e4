// SPDX-License-Identifier: Apache-2.0
//! Keeps pods' netdevs in their namespaces while the daemon binds the driver to a function. In its probe, the driver
//! derives the node GUID from the netdev's present MAC (`erdma_device_register()`,
//! `drivers/infiniband/hw/erdma/erdma_main.c`). A netdev that returns from a pod has the pod's MAC until `rdma-cni` has
//! restored the netdev.
//!
//! The daemon keeps all pods' netdevs in place, because only the driver knows which netdev belongs to a function.

use attachments::{Attachment, Rail, Stage, Store, pods::netns_seen, store::NodeLock};
use nix::libc::O_NONBLOCK;
use rdma_netns::{Inventory, Kernel, Linux};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
};

/// Keeps pods' netdevs in place by two means. The node's lock prevents a CNI command from moving a netdev. Open files
/// of the pods' namespaces prevent a namespace from ending and returning its netdev to the host.
#[derive(Debug)]
pub struct Hold {
    _moves: NodeLock,
    _pods: Vec<File>,
}

/// Keeps pods' netdevs in their namespaces. Finds the pods by their records below `state_dir`.
///
/// # Errors
/// A sentence: a pod's netdev may be on the host or on its way to the host, or the node's state cannot be read.
pub fn hold(kernel: &Linux, state_dir: &Path) -> Result<Hold, String> {
    let store = Store::new(state_dir);
    let moves = store.lock_node_alone().map_err(|it| it.to_string())?;
    let boot_id = kernel.boot_id().map_err(|it| it.to_string())?;
    if let [key, ..] = &*store.unreadable().map_err(|it| it.to_string())? {
        return Err(format!(
            "the record of {key} cannot be read, so a netdev on the host may have the MAC of the record's pod; delete \
             that pod: its DEL sets the record aside"
        ));
    }
    let inventory = kernel
        .inventory_without_ports()
        .map_err(|it| it.to_string())?;
    let records = store.of_boot(&boot_id).map_err(|it| it.to_string())?;
    let mut pods = vec![];
    for attachment in records {
        if has_moved(&attachment, &inventory)? {
            pods.push(opened(&attachment)?);
        }
    }
    Ok(Hold {
        _moves: moves,
        _pods: pods,
    })
}

/// Returns true if a netdev of `attachment` is in the pod and has hardware.
///
/// # Errors
/// A netdev is on the host and is not restored yet.
fn has_moved(attachment: &Attachment, inventory: &Inventory) -> Result<bool, String> {
    let moved = |rail: &&Rail| rail.shared.is_none() && rail.stage != Stage::Returned;
    let behind = |rail: &Rail| {
        let rdma = rail.rdma.as_ref().and_then(|it| it.parent.as_ref());
        inventory.function(rail.device().or(rdma)?)
    };
    let mut found = false;
    let rails = attachment.rails.iter().filter(moved);
    for function in rails.filter_map(behind) {
        if let [netdev, ..] = &*function.netdevs {
            return Err(format!(
                "{} of {} is on the host, and is not restored yet",
                netdev.name,
                attachment.holder()
            ));
        }
        found = true;
    }
    Ok(found)
}

/// Opens the namespace of the pod of `attachment`. While the file is open, the namespace exists. Does not enter the
/// namespace, because this would require `CAP_SYS_ADMIN`.
fn opened(attachment: &Attachment) -> Result<File, String> {
    let id = attachment.netns_id;
    let netns = netns_seen(attachment.netns.clone(), id);
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(O_NONBLOCK).open(netns);
    let found = file.and_then(|file| Ok((file.metadata()?, file)));
    match found {
        Ok((it, file)) if (it.dev(), it.ino()) == (id.device, id.inode) => Ok(file),
        _ => Err(format!(
            "the namespace of {} is gone or not visible, and the netdev that moved there is not restored yet",
            attachment.holder()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::fs;

    /// Returns a record with `rail`, for a pod whose namespace is at `netns`.
    fn record(boot_id: &str, netns: &Path, rail: &Value) -> Value {
        let mut own = json!({
            "podName": "rdma0",
            "home": {
                "index": 3, "name": "eth1", "mac": "52:54:00:ee:00:01", "mtu": 1500, "up": true, "carrier": true,
                "parent": "0000:21:01.0",
            },
            "rdma": {"name": "erdma_0", "index": 1, "node_guid": "", "parent": "0000:21:02.0"},
        });
        for (field, value) in rail.as_object().expect("fields") {
            own[field] = value.clone();
        }
        json!({
            "format": 1, "key": {"network": "rails", "container": "c", "interface": "eth0"}, "pod": "team/train-0",
            "bootId": boot_id, "netns": netns, "netnsId": {"device": 4, "inode": 1, "cookie": 2}, "phase": "attached",
            "rdmaMode": "exclusive", "dad": "off", "acceptRa": false, "rails": [own], "config": {},
        })
    }

    fn inventory(netdevs: Value) -> Inventory {
        let function = json!({"address": "0000:21:01.0", "netdevs": netdevs});
        serde_json::from_value(json!({"functions": [function]})).expect("an inventory")
    }

    #[test]
    fn a_netdev_on_the_host_is_not_restored_while_a_record_has_it() {
        let on_host = inventory(json!([{"name": "rdma0", "mac": "52:54:00:ee:00:77"}]));
        let attachment = |rail: Value| -> Attachment {
            let record = record("this", Path::new("/run/netns/a"), &rail);
            serde_json::from_value(record).expect("a record")
        };
        let moved = attachment(json!({}));
        let error = has_moved(&moved, &on_host).expect_err("it has the pod's MAC");
        assert!(error.starts_with("rdma0 of pod team/train-0"), "{error}");
        assert_eq!(has_moved(&moved, &inventory(json!([]))), Ok(true));
        // if the NIC's function is gone from the bus, its netdev cannot return
        assert_eq!(has_moved(&moved, &Inventory::default()), Ok(false));
        let returned = attachment(json!({"stage": "returned"}));
        assert_eq!(has_moved(&returned, &on_host), Ok(false));
        let child = json!({"type": "macvlan", "mode": "bridge"});
        let shared = json!({"parent": "eth1", "parentIndex": 3, "parentMtu": 1500, "child": child});
        let shared = attachment(json!({"home": null, "shared": shared}));
        assert_eq!(has_moved(&shared, &on_host), Ok(false));
    }

    #[test]
    fn a_namespace_is_held_without_being_entered() {
        let netns = Path::new("/proc/self/ns/net");
        let record = record("this", netns, &json!({}));
        let mut attachment: Attachment = serde_json::from_value(record).expect("a record");
        let error = opened(&attachment).expect_err("it is another one");
        assert!(error.contains("team/train-0"), "{error}");
        let found = fs::metadata(netns).expect("a namespace");
        attachment.netns_id.device = found.dev();
        attachment.netns_id.inode = found.ino();
        opened(&attachment).expect("a file");
        attachment.netns = "/run/netns/none".into();
        opened(&attachment).expect_err("it is gone");
    }

    #[test]
    fn an_unreadable_record_holds_nothing() {
        let state = tempfile::tempdir().expect("a directory");
        let records = state.path().join("attachments/rails");
        fs::create_dir_all(&records).expect("a directory");
        let kernel = Linux::with_roots(state.path(), state.path());
        fs::create_dir_all(state.path().join("class")).expect("a directory");
        let file = records.join("c@eth0.json");
        fs::write(&file, "damaged").expect("written");
        let error = hold(&kernel, state.path())
            .map(drop)
            .expect_err("unreadable");
        assert!(
            error.contains("container c (eth0 of network rails) cannot be read"),
            "{error}"
        );
        fs::remove_file(&file).expect("removed");
        hold(&kernel, state.path()).map(drop).expect("held");
    }
}
