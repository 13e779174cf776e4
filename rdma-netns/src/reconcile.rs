// SPDX-License-Identifier: Apache-2.0
//! Loop that reaches a desired state: observe, plan, apply, observe again.

use crate::{Kernel, Op, OpError};

/// Result of an observation and a plan.
#[derive(Debug)]
pub enum Plan<T> {
    /// The state is reached: no change is missing.
    Reached(T),
    /// The missing changes. There is at least one.
    Missing(Vec<Op>),
}

/// Reaction to a change that the kernel refused.
#[derive(Debug)]
pub enum Refusal<E> {
    /// Continues the round without this change, because the desired state does not need it.
    DoWithout,
    /// Repeats the change at once. The implementation of [`Desired`] must limit the number of tries.
    TryAgain,
    /// Continues the round. If this is the last round, and the desired state is not reached, [`reconcile`] returns the
    /// error.
    GoOn(OpError),
    /// Ends the round and plans again. Either later changes depend on this change, or the state has changed since the
    /// observation.
    PlanAgain(OpError),
    /// Ends the loop with this error: the desired state cannot be reached.
    End(E),
}

/// The kernel made all necessary changes, but the state still differs from the desired state.
#[derive(Debug, thiserror::Error)]
#[error("another program undid this change: {0}")]
pub struct Unstable(String);

/// A desired state of a namespace, and the reactions to changes that the kernel refuses.
pub trait Desired {
    /// Result when no change is missing.
    type Reached;
    /// Reason why the state was not reached.
    type Error: From<OpError> + From<Unstable>;

    /// Observes the present state, and plans the missing changes. Writes the changes into a record before they are
    /// made, if a record is necessary. [`reconcile`] calls this function before each round, and once after the last
    /// round.
    ///
    /// # Errors
    /// The present state cannot be read, or the desired state cannot be reached from it.
    fn plan(&mut self) -> Result<Plan<Self::Reached>, Self::Error>;

    /// Returns the reaction to a change that the kernel refused.
    fn refused(&mut self, error: OpError) -> Refusal<Self::Error>;
}

/// Makes missing changes and observes again until no change is missing, for at most `rounds` rounds. Returns the
/// reached state and the number of changes.
///
/// # Errors
/// The first of these errors that applies:
///
/// 1. the error of `desired`
/// 2. the kernel's last refusal of the last round
/// 3. [`Unstable`]: after the last round a change is still missing, because another program undid it
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
