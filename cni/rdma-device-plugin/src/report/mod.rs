// SPDX-License-Identifier: Apache-2.0
//! What the API server is told of the node's rails, where this is asked for (`--report`): events of pods whose network
//! is not what they were promised, and a condition of the node where rails are missing.
//!
//! | module | |
//! |---|---|
//! | [`condition`] | what the node's condition says: pure |
//! | [`condition_writer`] | keeps it so: the leader's |
//! | [`event`] | one event of a pod, and how many are written |
//! | [`rails`] | which pods are to be told what of their rails: pure, of what was told before |
//! | [`rail_events`] | tells pods that run of rails that are lost and come back: the leader's |
//! | [`pods`] | which pods have which devices |
//! | [`refusals`] | tells pods why their containers may not start |
//!
//! Nothing of the node depends on it: kubelet never waits, and an API server that is away is asked again later.

pub mod condition;
pub mod condition_writer;
pub mod event;
pub mod pods;
pub mod rail_events;
pub mod rails;
pub mod refusals;

use clap::ValueEnum;

/// What the API server is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// Events of pods: refused ones, and those whose rails are lost or come back
    Events,
    /// The node's condition `RdmaRailsMissing`
    NodeCondition,
}
