// SPDX-License-Identifier: Apache-2.0
//! One round of a restore: executes the plans of all rails, and continues after refused operations.

use super::busy;
use attachments::{Attribute, Spared, store::StoreError};
use nix::libc;
use plan::{self, RailPlan};
use rdma_netns::{Kernel, LinkChange, Observed, Op, OpError};

/// Errors that a temporary state of the machine causes, and not the request.
const PASSING: [i32; 4] = [libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN, libc::EINTR];

/// Returns a sentence about the kernel's refusal, and true if a later try may succeed.
fn refusal_of(error: OpError) -> (String, bool) {
    let is_passing = busy::is_busy(&error) || error.errno().is_some_and(|it| PASSING.contains(&it));
    (error.to_string(), is_passing)
}

/// A refused operation.
pub(super) struct Refusal {
    /// Index of the rail.
    pub(super) rail: usize,
    pub(super) op: Op,
    /// A sentence.
    pub(super) why: String,
    /// True if a later try may succeed.
    pub(super) is_passing: bool,
}

/// Result of executing the plans of all rails in one round.
#[derive(Default)]
pub(super) struct RoundResult {
    pub(super) refused: Vec<Refusal>,
    /// Settings that drivers accepted and do not report, each with the index of its rail.
    pub(super) unobservable: Vec<(usize, Attribute)>,
}

/// Executes the plans of all rails. If an operation fails and later operations depend on it, the rail's plan ends.
/// Other failed operations are skipped, so a refused alias does not keep a NIC down. An operation that would also
/// change other netdevs of the host counts as failed. First tries to remove all children by one deletion. The netdevs
/// in `spared` keep their default routers. If `spared` could not be recorded, operations that would drop these routers
/// fail.
pub(super) fn run<K: Kernel>(
    kernel: &K,
    pod: Option<&K::Pod>,
    (plans, spared): (&[RailPlan], Result<&[Spared], &StoreError>),
    observed: &Observed,
) -> RoundResult {
    let mut result = RoundResult::default();
    let together = plan::children_together(plans, observed);
    let execute = |op: &Op| kernel.execute_as_observed(op, pod, observed);
    let are_gone = remove_together(execute, &together);
    for (rail, plan) in plans.iter().enumerate() {
        for op in plan.iter().flatten() {
            if are_gone && plan::child_removed(op).is_some() {
                continue;
            }
            log::debug!("{op}");
            let done = match (plan::drops_routers(op), spared) {
                (true, Err(error)) => Err((error.to_string(), true)),
                (true, Ok(spared)) => sparing(kernel, spared, op).map_err(refusal_of),
                _ if plan::is_of_others(op, observed) => Err((
                    format!("the operation would also change other netdevs of the host: {op}"),
                    false,
                )),
                (false, _) => execute(op).map_err(refusal_of),
            };
            let Err((why, is_passing)) = done else {
                let unreported = Attribute::of(op).filter(|_| plan::is_unreported(op, observed));
                result.unobservable.extend(unreported.map(|it| (rail, it)));
                continue;
            };
            result.refused.push(Refusal {
                rail,
                op: op.clone(),
                why,
                is_passing,
            });
            let is_basis = matches!(
                op,
                Op::MoveRdma { .. }
                    | Op::MoveLink { .. }
                    | Op::Link { change: LinkChange::Rename(_), .. }
                    | Op::Link { change: LinkChange::Up(_), .. }
                    // a route of another plugin's interface must be removed before the rules of its table
                    | Op::Link { change: LinkChange::RemoveRoute(_), .. }
            );
            if is_basis {
                break;
            }
        }
    }
    result
}

/// Executes an operation that makes the kernel drop default routers, and protects the default routers of the netdevs in
/// `spared`. If this function cannot restore a netdev's `accept_ra`, the next verb that reads the record restores it.
fn sparing<K: Kernel>(kernel: &K, spared: &[Spared], op: &Op) -> Result<(), OpError> {
    let change = |op: Op, consequence: &str| {
        if let Err(error) = kernel.execute(&op, None) {
            log::warn!("{error}; {consequence}");
        }
    };
    plan::spare(spared).for_each(|op| change(op, "the netdev may lose its default routers"));
    let done = kernel.execute(op, None);
    plan::spare_no_more(spared).for_each(|op| change(op, "the next verb restores the value"));
    done
}

/// Removes the children of several rails by one deletion. Returns false if `ops` is empty, or if the kernel refuses an
/// operation. Then each rail's own plan removes its child and reports errors.
fn remove_together(execute: impl Fn(&Op) -> Result<(), OpError>, ops: &[Op]) -> bool {
    let made = ops.iter().try_for_each(|op| {
        log::debug!("{op}");
        execute(op)
    });
    if let Err(error) = &made {
        log::debug!("{error}; removing the children one by one");
    }
    made.is_ok() && !ops.is_empty()
}
