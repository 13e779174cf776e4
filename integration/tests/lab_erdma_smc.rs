// SPDX-License-Identifier: Apache-2.0
//! In the lab, SMC-R on eRDMA functions with RoCE v2: `integration/lab/vm --tier erdma --erdma-roce`, one test at a
//! time. Driver and SMC are those of the kernel, the functions are models.

use integration::{
    Netns, Snapshot,
    erdma_functions::{ADDRESSES, Driver, ErdmaNode},
    smc::{
        SmcPeer,
        pods::{SmcPod, UEID, bridge, exchange, make_bridge},
        shown,
    },
};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// SMC of Linux 6.12 with a patch that accepts devices with one receive SGE (`integration/lab/patches`). The kernel's
/// own module is loaded again on drop.
struct OneReceiveSge;

impl OneReceiveSge {
    #[track_caller]
    fn load() -> Self {
        let host = Netns::own();
        host.run("rmmod smc_diag smc");
        for module in ["smc", "smc_diag"] {
            host.run(&format!("insmod /lib/modules/smc-receive-sge/{module}.ko"));
        }
        Self
    }
}

impl Drop for OneReceiveSge {
    fn drop(&mut self) {
        for line in ["rmmod smc_diag smc", "modprobe -a smc smc_diag"] {
            let mut words = line.split_whitespace();
            let program = words.next().unwrap_or_default();
            let _ = Command::new(program).args(words).status();
        }
    }
}

/// Two annotated pods with an eRDMA NIC each. Connections between the NICs' addresses carry all bytes. `is_expected`
/// accepts each connection at both ends.
#[track_caller]
fn annotated_pods_are_carried(is_expected: impl Fn(&str) -> bool) {
    let scene = ErdmaNode::new(Driver::Kernel, "exclusive");
    let node = &scene.node;
    let leases = node.state().with_file_name("leases");
    make_bridge(&node.runtime(), &leases);
    let before = Snapshot::of(&node.host);
    let pods = [("one", 0), ("two", 1)].map(|(name, nic)| {
        let mut plugin = scene.configuration(nic);
        plugin["smcr"] = "annotation".into();
        plugin["smcUeid"] = UEID.into();
        let pod = SmcPod::new(name, [bridge(&leases), plugin], Some("true"));
        pod.add(&node.runtime());
        pod
    });
    for pod in &pods {
        pod.check(&node.runtime());
    }
    let peer = SmcPeer(env!("CARGO_BIN_EXE_smc-peer").into());
    let (listener, client) = exchange(&peer, [&pods[0], &pods[1]], ADDRESSES[0], (4, 4 * MIB));
    for pod in &pods {
        let carried = pod.carried();
        println!("{carried:?}");
        let is_expected = !carried.is_empty() && carried.iter().all(|it| is_expected(it));
        assert!(is_expected, "{carried:?}: {}", shown(&pod.netns));
    }
    client.end();
    listener.end();
    for pod in &pods {
        pod.del(&node.runtime());
    }
    node.assert_restored(&before);
}

#[test]
fn smc_that_needs_two_receive_sges_stays_with_tcp() {
    annotated_pods_are_carried(|it| it.starts_with("tcp: ") && it.contains("internal error"));
}

#[test]
fn smc_that_takes_one_receive_sge_has_smc_r() {
    let _variant = OneReceiveSge::load();
    annotated_pods_are_carried(|it| it == "smcr");
}
