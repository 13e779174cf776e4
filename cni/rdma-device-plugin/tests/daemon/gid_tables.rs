// SPDX-License-Identifier: Apache-2.0
//! The number of ids of a shared resource that has none in the configuration, by the GID tables of a made-up node.

use crate::{FIRST, Machine, Running, SECOND, environment::gids, start};
use serde_json::Value;
use std::fs;

/// Configuration of pods with rails on both NICs, and `field` in its resource.
fn configuration(machine: &Machine, field: &str) -> String {
    let networks = machine.path("no-networks");
    format!(
        r#"{{"chain": {{"confDir": {networks:?}}}, "resources": [{{"name": "rdma/hca", "kind": "shared"{field}}}]}}"#
    )
}

#[test]
fn as_many_ids_are_offered_as_pods_fit_and_none_is_taken_away() {
    let machine = Machine::with(&[FIRST, SECOND]);
    // 16 entries, and the other table cannot be read
    gids(&machine, &FIRST, &["fe80::1", "fd00::1"]);
    let default = configuration(&machine, "");
    let running = Running::on(machine, &default).listed("rdma/hca", 3);

    let five = configuration(&running.machine, r#", "count": 5"#);
    running.machine.configure(&five);
    running.has("rdma/hca", 5);
    running.daemon.says(
        "resources[0]: rdma/hca has 5 ids, and 3 pods fit into the GID tables of its devices: ADD of a further pod \
         fails; set the number of ids to 3",
    );
    running.machine.configure(&default);
    let before = "rdma/hca has 5 ids as before, which pods may have, and 3 pods fit";
    running.daemon.says(before);
    running.has("rdma/hca", 5);

    let running = again(running, |_| {});
    running.daemon.says(before);
    running.has("rdma/hca", 5);
    // as an earlier version has it
    let running = again(running, |machine| {
        let path = machine.path("state/resources.json");
        let text = fs::read_to_string(&path).expect("the file");
        let mut published: Value = serde_json::from_str(&text).expect("JSON");
        let resource = published["resources"]["rdma/hca"].as_object_mut();
        assert!(resource.expect("the resource").remove("ids").is_some());
        fs::write(&path, published.to_string()).expect("written");
    });
    running.has("rdma/hca", 1000);
}

/// Kills the daemon, makes this change, and starts the daemon again.
#[track_caller]
fn again(running: Running, change: impl FnOnce(&Machine)) -> Running {
    let Running {
        mut daemon,
        kubelet,
        machine,
    } = running;
    daemon.kill();
    change(&machine);
    Running {
        daemon: start(&machine),
        kubelet,
        machine,
    }
}
