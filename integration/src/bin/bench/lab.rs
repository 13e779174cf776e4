// SPDX-License-Identifier: Apache-2.0
//! Measurements inside the lab's VM (`integration/lab/vm --tier full`): pods with 1, 2, 4 and 8 virtual functions with
//! RDMA devices. In exclusive mode the functions and their RDMA devices move into the pods. In shared mode the pods
//! get children.

use super::{by_rails::ByRails, run::runs};
use integration::{lab::Lab, plugin::cni_path, plugin::rdma_cni};
use serde_json::{Value, json};
use std::{env, fs};

const COUNTS: [u32; 4] = [1, 2, 4, 8];
/// Few runs, because emulated CPUs are slow.
const RUNS: usize = 5;

/// Measures in the VM's own namespace.
pub(super) fn measure() {
    let lab = Lab::new(COUNTS[3] as usize / 2);
    let shared = env::var("RDMA_LAB_MODE").is_ok_and(|it| it == "shared");
    let [one, other] = &lab.functions;
    let rails: Vec<_> = one
        .iter()
        .zip(other)
        .flat_map(|(one, other)| [one, other])
        .collect();
    for (number, rail) in (1..).zip(&rails) {
        let netdev = &rail.netdev;
        lab.host.ip(&format!(
            "address add 2001:db8:{number}::1/64 dev {netdev} nodad"
        ));
    }
    let directory = lab.state().with_file_name("bench");
    fs::create_dir(&directory).expect("a directory");
    let input = |count: u32| {
        let devices = rails.iter().take(count as usize);
        let devices: Vec<Value> = devices.map(|it| json!({"pci": it.pci})).collect();
        let mut configuration = json!({
            "cniVersion": "1.0.0", "name": "bench", "type": "rdma-cni", "stateDir": lab.state(),
            "devices": devices, "mode": "move",
        });
        if shared {
            configuration["mode"] = "share".into();
            let leases = directory.join("leases");
            configuration["ipam"] =
                json!({"type": "rdma-ipam", "from": "parent", "dataDir": leases});
        }
        let file = directory.join(format!("{count}-rails.json"));
        fs::write(&file, configuration.to_string()).expect("the configuration");
        (count, file)
    };
    let (what, table) = match shared {
        true => (
            "children of functions, with RDMA devices that all see",
            "lab-share",
        ),
        false => ("functions that move, with their RDMA devices", "lab-moves"),
    };
    ByRails {
        what,
        inputs: COUNTS.map(input).into(),
        runs: runs(RUNS),
        cni_path: &cni_path(&rdma_cni(), &[]),
        peers: None,
    }
    .measure(table);
}
