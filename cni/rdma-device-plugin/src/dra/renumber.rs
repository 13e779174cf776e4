// SPDX-License-Identifier: Apache-2.0
//! Updates prepared claims while pods have their devices. A device can get another number, disappear or come back. A
//! restarted container must get its own devices, or no devices at all.

use super::prepare::in_words;
use ::dra::{Claims, Record, store::Check};
use anyhow::Result;
use node_state::{
    hardware::{Hardware, HardwareError},
    node::Node,
    watch::Watch,
};
use rdma_netns::{Kernel, Linux};
use rdma_resources::grant::GrantedDevice;
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

/// Delay after a failed check.
const AGAIN: Duration = Duration::from_secs(5);

/// Time after a failed check in which the task ignores changes in the claims' directory. The check may lock the claims,
/// and the release of the lock is such a change.
const QUIET: Duration = Duration::from_secs(1);

/// Checks the claims in `state_dir` now, after each change of the claims or of `node`, and again after a failure. Ends
/// when the sender of `node` is dropped.
pub async fn follow(mut node: watch::Receiver<Arc<Node>>, hardware: Hardware, state_dir: PathBuf) {
    let claims = Claims::new(&state_dir);
    let mut records = Watch::new(vec![claims.directory().to_owned()]);
    // failures of the last check, which the log already has
    let mut reported = vec![];
    loop {
        node.borrow_and_update();
        let (all, seen) = (claims.clone(), hardware.clone());
        let checked = spawn_blocking(move || check(&all, &seen)).await;
        let checked = checked.unwrap_or_else(|error| Err(HardwareError::Stopped(error).into()));
        let failed = match checked {
            Ok(Check { changed, failed }) => {
                changed.iter().for_each(log_change);
                failed.iter().map(ToString::to_string).collect()
            }
            Err(error) => vec![error.to_string()],
        };
        for line in failed.iter().filter(|line| !reported.contains(*line)) {
            log::error!("the CDI specifications of claims may be out of date: {line}");
        }
        reported = failed;
        tokio::select! {
            changed = node.changed() => if changed.is_err() {
                return;
            },
            // check at once: a device may have disappeared between the claim's preparation and the start of its
            // containers
            () = claims_changed(&mut records, !reported.is_empty()) => {}
            () = sleep(AGAIN), if !reported.is_empty() => {}
        }
    }
}

async fn claims_changed(records: &mut Watch, has_failed: bool) {
    if has_failed {
        sleep(QUIET).await;
    }
    records.changed().await;
}

fn check(claims: &Claims, hardware: &Hardware) -> Result<Check> {
    let boot_id = Linux::default().boot_id()?;
    claims.check(&boot_id, || Ok(hardware.presence()?))
}

fn log_change(record: &Record) {
    let claim = &record.claim;
    let lost: Vec<String> = record.lost().map(named).collect();
    match lost.as_slice() {
        [] => log::info!(
            "the CDI specification of claim {claim} is up to date again: {}",
            in_words(record)
        ),
        lost => log::warn!(
            "claim {claim} lost {}: its containers cannot restart until the device is back; delete the pod to get \
             other devices",
            lost.join(", ")
        ),
    }
}

/// Formats a NIC as `mlx5_0 (0000:3b:00.0)`.
fn named(nic: &GrantedDevice) -> String {
    format!("{} ({})", nic.rdma, nic.address)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use daemon_conf::Conf;
    use integration::{Machine, machine::Nic};
    use rdma_resources::CharNode;
    use serde_json::json;
    use std::{fs, path::Path, time::Instant};

    pub(in crate::dra) const UID: &str = "0c1f6e1e-7f3c-4a53-9d0a-3d1b0c6b2f11";
    pub(in crate::dra) const NIC: Nic<'_> = Nic {
        address: "0000:3b:00.0",
        rdma: "mlx5_0",
        netdev: "ens1f0",
        numa_node: 0,
        number: 0,
    };

    pub(in crate::dra) fn node() -> Arc<Node> {
        Arc::new(Node {
            conf: Arc::new(
                Conf::parse("mode: hca", Path::new("f"))
                    .expect("a configuration")
                    .conf,
            ),
            ..Node::default()
        })
    }

    /// Returns the record of a claim for `NIC` with an outdated device number.
    pub(in crate::dra) fn claim(machine: &Machine) -> Record {
        let numbers = vec![CharNode {
            name: "uverbs7".into(),
            major: 231,
            minor: 199,
        }];
        let nic = GrantedDevice {
            address: NIC.address.to_owned().try_into().expect("an address"),
            rdma: NIC.rdma.into(),
            parent: None,
            char_devices: numbers,
        };
        let device = json!({
            "request": "nic", "pool": "n", "device": "d", "resource": "rdma/hca", "sharing": "shared", "nics": [nic],
        });
        let record = json!({
            "format": dra::record::FORMAT,
            "driver": "hca.rdma",
            "claim": {"namespace": "default", "name": "a", "uid": UID},
            "bootId": Linux::default().boot_id().expect("a boot id"),
            "cdiDir": machine.path("cdi"),
            "pods": [],
            "awaitsNetwork": false,
            "networks": [],
            "devices": [device],
            "requests": [{"name": "nic"}],
        });
        serde_json::from_value(record).expect("a record")
    }

    /// A failed check locks the claims. The release of this lock starts the next check, at most once a second.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_failure_wakes_itself_once_a_second_at_most() {
        let machine = Machine::with(&[NIC]);
        let (state, hardware) = (
            machine.path("state"),
            Hardware::new(&machine.path("sys"), &machine.path("dev")),
        );
        let claims = Claims::new(&state);
        claims.prepare(claim(&machine)).expect("prepared");
        let is_written = || {
            claims
                .read(UID)
                .expect("read")
                .expect("a record")
                .nics()
                .all(|it| it.char_devices[0].minor == 192)
        };
        // writing fails, because a directory has the name of the temporary file
        let in_the_way = claims.directory().join(format!("{UID}.new"));
        fs::create_dir(&in_the_way).expect("a directory");
        let (counter, tries) = watch::channel(0);
        let claims_watch = Watch::new(vec![claims.directory().to_owned()]);
        let counting = tokio::spawn(claims_watch.count(counter));
        let (_node, receiver) = watch::channel(node());
        let begun = Instant::now();
        let follower = tokio::spawn(follow(receiver, hardware, state.clone()));
        sleep(QUIET * 2).await;
        let seconds = begun.elapsed().as_secs() + 1;
        let count = *tries.borrow();
        assert!((1..=1 + seconds).contains(&count), "{count} in {seconds} s");
        let specification = format!("cdi/rdma-device-plugin-claim-{UID}.json");
        let specification = machine.path(&specification);
        assert!(!is_written() && !specification.exists());
        fs::remove_dir(&in_the_way).expect("removed");
        // wait for both files: the check writes the record before the CDI specification
        while !(is_written() && specification.exists()) {
            assert!(begun.elapsed() < AGAIN * 6, "it is not tried again");
            sleep(QUIET / 10).await;
        }
        follower.abort();
        counting.abort();
    }
}
