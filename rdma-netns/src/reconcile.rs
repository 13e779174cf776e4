// SPDX-License-Identifier: Apache-2.0
//! Observe, plan, apply, observe again: the loop that reaches a desired state.

use crate::{Kernel, Op, OpError};

/// Result of an observation and a plan.
#[derive(Debug)]
pub enum Plan<T> {
    /// Nothing is missing.
    Reached(T),
    /// The changes that are missing: at least one.
    Missing(Vec<Op>),
}

/// Reaction to a change that the kernel refused.
#[derive(Debug)]
pub enum Refusal<E> {
    /// The desired state does without it; the round goes on.
    DoWithout,
    /// The change is tried again at once. The implementation that returns this must bound the attempts.
    TryAgain,
    /// The round goes on; the error counts if the next rounds do not reach the desired state.
    GoOn(OpError),
    /// The round ends, and the next one plans the rest again: other changes depend on this one, or the state has
    /// changed since the observation.
    PlanAgain(OpError),
    /// The desired state cannot be reached.
    End(E),
}

/// All changes were made, and yet something differs.
#[derive(Debug, thiserror::Error)]
#[error("another program undid this change: {0}")]
pub struct Unstable(String);

/// A desired state of a namespace, and the reactions to refused changes.
pub trait Desired {
    /// Result when nothing is missing.
    type Reached;
    /// Reason why the state was not reached.
    type Error: From<OpError> + From<Unstable>;

    /// Observes the present state, plans the missing changes, and if necessary records them before they are made.
    /// [`reconcile`] calls this once before each round, and once after the last one.
    ///
    /// # Errors
    /// The present state cannot be read, or the desired state cannot be reached from it.
    fn plan(&mut self) -> Result<Plan<Self::Reached>, Self::Error>;

    /// The kernel refused a change.
    fn refused(&mut self, error: OpError) -> Refusal<Self::Error>;
}

/// Makes the missing changes and observes again until none is missing, for at most `rounds`. Returns the reached state,
/// and the number of changes.
///
/// # Errors
/// The error of `desired`; else the kernel's last refusal; else a change that another process undoes.
pub fn reconcile<K: Kernel, D: Desired>(
    kernel: &K,
    pod: Option<&K::Pod>,
    rounds: usize,
    desired: &mut D,
) -> Result<(D::Reached, usize), D::Error> {
    let mut changes = 0;
    let mut failed = None;
    for _ in 0..rounds {
        let ops = match desired.plan()? {
            Plan::Reached(reached) => return Ok((reached, changes)),
            Plan::Missing(ops) => ops,
        };
        failed = None;
        'round: for op in &ops {
            log::debug!("{op}");
            loop {
                let Err(error) = kernel.execute(op, pod) else {
                    changes += 1;
                    break;
                };
                match desired.refused(error) {
                    Refusal::TryAgain => continue,
                    Refusal::DoWithout => {}
                    Refusal::GoOn(error) => failed = Some(error),
                    Refusal::PlanAgain(error) => {
                        failed = Some(error);
                        break 'round;
                    }
                    Refusal::End(error) => return Err(error),
                }
                break;
            }
        }
    }
    match (desired.plan()?, failed) {
        (Plan::Reached(reached), _) => Ok((reached, changes)),
        (Plan::Missing(_), Some(error)) => Err(error.into()),
        (Plan::Missing(ops), None) => {
            let words: Vec<String> = ops.iter().map(Op::to_string).collect();
            Err(Unstable(words.join("; ")).into())
        }
    }
}
