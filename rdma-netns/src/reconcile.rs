// SPDX-License-Identifier: Apache-2.0
//! Observe, plan, apply, look again: the loop that reaches a desired state.

use crate::{Kernel, Op, OpError};

/// What a look and a plan came to.
#[derive(Debug)]
pub enum Plan<T> {
    /// Nothing is missing.
    Reached(T),
    /// The changes that are missing: at least one.
    Missing(Vec<Op>),
}

/// What becomes of a round in which the kernel refused a change.
#[derive(Debug)]
pub enum Refusal<E> {
    /// The desired state does without it; the round goes on.
    DoWithout,
    /// The change is tried again at once: how long is who answers this to bound.
    TryAgain,
    /// The round goes on; the error counts if the next rounds do not mend it.
    GoOn(OpError),
    /// Other changes build upon it: the round ends, and the rest is planned anew.
    PlanAnew(OpError),
    /// There is no way to the desired state.
    End(E),
}

/// All changes were made, and yet something differs.
#[derive(Debug, thiserror::Error)]
#[error("done, and yet undone again by somebody else: {0}")]
pub struct Unstable(String);

/// A desired state of a namespace, and who wants it.
pub trait Desired {
    /// What is known when nothing is missing.
    type Reached;
    /// Why it was not reached.
    type Error: From<OpError> + From<Unstable>;

    /// Looks at the present state, plans what is missing, and records it where that has to be known before
    /// it is done. Called once before each round, and once more after the last one.
    ///
    /// # Errors
    /// The present state cannot be read, or there is no way from it.
    fn plan(&mut self) -> Result<Plan<Self::Reached>, Self::Error>;

    /// The kernel refused a change.
    fn refused(&mut self, error: OpError) -> Refusal<Self::Error>;
}

/// Makes the changes that are missing, and looks again, until none is, for at most so many `rounds`. What
/// was reached, and how many changes were made.
///
/// # Errors
/// What `desired` says; else the kernel's last refusal; else what somebody else undoes.
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
                    Refusal::PlanAnew(error) => {
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
