// SPDX-License-Identifier: Apache-2.0
//! Liveness and readiness of the daemon.

use super::{Driver, Known, Metrics, Registered};
use std::time::{Duration, Instant};

/// Longest time for which a running kubelet may be without a resource of the daemon.
pub(super) const GRACE: Duration = Duration::from_secs(10);

impl Metrics {
    /// Returns a description of the daemon's health: `Ok` if the daemon is healthy, otherwise `Err`. The daemon is
    /// unhealthy if kubelet's socket exists, and kubelet has been without an offered resource for longer than
    /// [`GRACE`].
    pub(crate) fn health(
        &self,
        offered: &[&str],
        kubelet_is_there: bool,
        now: Instant,
    ) -> Result<String, String> {
        if offered.is_empty() {
            return Ok(
                "nothing to advertise: this node has no configured RDMA device, or dra serves all resources\n".into(),
            );
        }
        if !kubelet_is_there {
            return Ok("kubelet's socket is missing; waiting for it\n".into());
        }
        let known = self.0.registrations_now.lock();
        let missing: Vec<String> = offered
            .iter()
            .filter_map(|name| {
                let never = Registered::new(false, self.0.since);
                let state = known.get(*name).copied().unwrap_or(never);
                let lasted = now.saturating_duration_since(state.since);
                (!state.yes && lasted > GRACE).then(|| {
                    format!(
                        "{name} has not been registered with kubelet for {} s, although kubelet's socket exists\n",
                        lasted.as_secs()
                    )
                })
            })
            .collect();
        match missing.as_slice() {
            [] => Ok(format!("ok: {} resources\n", offered.len())),
            missing => Err(missing.concat()),
        }
    }

    /// Checks that kubelet has this daemon's list of each offered resource, and keeps it when another daemon ends. The
    /// error names the resources for which kubelet has no such list.
    pub(crate) fn lists_are_out(&self, offered: &[&str]) -> Result<(), String> {
        let known = self.0.registrations_now.lock();
        let is_out = |name: &&&str| {
            let known = known.get(**name);
            known.is_some_and(|it| it.yes && it.listed && it.settled)
        };
        let missing = offered.iter().filter(|name| !is_out(name)).copied();
        let missing: Vec<&str> = missing.collect();
        match missing.as_slice() {
            [] => Ok(()),
            missing => Err(format!(
                "kubelet does not have the device list of {} yet\n",
                missing.join(", ")
            )),
        }
    }

    /// Checks that kubelet has registered this daemon's DRA driver. Succeeds if the daemon has no driver.
    pub(crate) fn driver_is_known(&self) -> Result<(), String> {
        let driver = self.0.driver.lock();
        let Some(Driver { name, known }) = &*driver else {
            return Ok(());
        };
        match known {
            Known::Yes => Ok(()),
            Known::NotYet => Err(format!(
                "kubelet has not registered the DRA driver {name} yet\n"
            )),
            Known::Refused(why) => Err(format!("kubelet refuses the DRA driver {name}: {why}\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_kubelet_must_know_offered_resources() {
        let metrics = Metrics::new();
        let offers = ["rdma/hca", "rdma/vf"];
        let soon = Instant::now();
        let late = soon + GRACE + Duration::from_secs(1);
        let is_well = |there: bool, at: Instant| metrics.health(&offers, there, at).is_ok();
        assert!(is_well(true, soon));
        assert!(!is_well(true, late));
        assert!(is_well(false, late));
        metrics.registered("rdma/hca", true);
        let words = metrics.health(&offers, true, late).expect_err("not well");
        assert!(
            words.starts_with("rdma/vf has not been registered"),
            "{words}"
        );
        assert!(!words.contains("rdma/hca"), "{words}");
        metrics.registered("rdma/vf", true);
        assert!(is_well(true, late));
        // kubelet has restarted without this resource
        metrics.forgotten("rdma/vf");
        assert!(is_well(true, Instant::now()));
        assert!(!is_well(true, late + GRACE));
        assert_eq!(
            metrics.health(&[], true, late).as_deref(),
            Ok(
                "nothing to advertise: this node has no configured RDMA device, or dra serves all resources\n"
            )
        );
    }

    #[test]
    fn the_daemon_is_ready_when_kubelet_has_all_lists() {
        let metrics = Metrics::new();
        let offers = ["rdma/hca", "rdma/vf"];
        let is_ready = || metrics.lists_are_out(&offers).is_ok();
        assert!(metrics.lists_are_out(&[]).is_ok());
        for name in ["rdma/hca", "rdma/vf"] {
            assert!(!is_ready());
            // kubelet opens the stream before it answers the registration
            metrics.listed(name);
            metrics.registered(name, true);
            assert!(!is_ready());
            metrics.settled(name);
        }
        assert!(is_ready());
        metrics.forgotten("rdma/hca");
        let words = metrics.lists_are_out(&offers).expect_err("not ready");
        assert!(
            words.contains("rdma/hca") && !words.contains("rdma/vf"),
            "{words}"
        );
        metrics.registered("rdma/hca", true);
        metrics.settled("rdma/hca");
        assert!(!is_ready(), "no list since");
        metrics.listed("rdma/hca");
        assert!(is_ready());
    }
}
