// SPDX-License-Identifier: Apache-2.0
//! Reports the node's rails to the API server (`--report`). The reports are events about pods that have lost or
//! recovered rails or must not start, and a condition of the node, which is true while rails are missing.
//!
//! | module | |
//! |---|---|
//! | [`condition`] | condition of the node: pure |
//! | [`condition_writer`] | keeps the condition up to date: a task of the leader |
//! | [`event`] | one event of a pod, and the limit for the number of events |
//! | [`rails`] | decides which reports pods get about their rails: pure, from earlier reports |
//! | [`rail_events`] | reports lost and recovered rails to running pods: a task of the leader |
//! | [`pods`] | pods and their devices |
//! | [`refusals`] | reports to pods why their containers must not start |
//!
//! Nothing on the node depends on these reports, and kubelet never waits for them. The daemon retries if the API server
//! does not answer.

pub mod condition;
pub mod condition_writer;
pub mod event;
pub mod pods;
pub mod rail_events;
pub mod rails;
pub mod refusals;

use clap::ValueEnum;

/// Topics of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// Events of pods that are refused, or whose rails are lost or come back
    Events,
    /// The node's condition `RdmaRailsMissing`
    NodeCondition,
}
