// SPDX-License-Identifier: Apache-2.0
//! Resources that are allocated by claims (`dra` of the configuration). The daemon, its token, role and policy of
//! the chart, and the scheduler are real; kubelet is a stand-in. If the API server's Kubernetes release lacks a
//! feature, the daemon reports this in a sentence.

mod driver;
mod exclusive;
mod metadata;
mod parameters;
mod shared;
mod taints;

use driver::{NODE, release};
use integration::ControlPlane;

pub(super) fn are_prepared_by_the_daemon_of_their_node(cluster: &mut ControlPlane) {
    cluster.add_node(NODE, &[]);
    cluster.kubectl(&format!("label node {NODE} {}", super::LABEL));
    exclusive::virtual_functions_are_claimed(cluster);
    taints::pods_have_degraded_nics_and_leave_unhealthy_ones(cluster);
    match release(cluster) {
        36.. => shared::shared_nics_are_the_extended_resource(cluster),
        _ => shared::what_cannot_be_shared_is_refused_in_words(cluster),
    }
}
