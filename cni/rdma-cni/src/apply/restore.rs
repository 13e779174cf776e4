// SPDX-License-Identifier: Apache-2.0
//! Restores rails to the host. If one rail or attribute fails, the restore continues with the other rails and
//! attributes.

use super::{
    ROUNDS, Tries,
    busy::PAUSE,
    outcome::{GivenUp, Incomplete, Restored},
    rebound,
    round::{self, Refusal, RoundResult},
};
use crate::open_connections;
use attachments::{Attachment, Attribute, Spared, Stage, store::StoreError};
use plan::{self, Obstacle, Others, RailPlan};
use rdma_netns::{
    Kernel, Observed, Op,
    device_settings::{FLOW_RULES, UNREADABLE},
};
use std::time::{Duration, Instant};

/// Time limit for repeated tries, from the start of the restore, or from its last move or bind. The restore repeats its
/// tries while another program, such as a network manager, changes the netdev, while memory is short, or while a driver
/// is busy.
const SETTLING: Duration = Duration::from_secs(2);

/// Reason that a verb reports when it leaves netdevs for the next verb to remove.
const CONTINUES: &str = "the removal of the netdevs that the pod made on its rails continues with the next DEL, GC or ADD";

/// Number of repetitions of the same plan, with refusals or binds, after which the restore expects no further change.
const MAX_REPETITIONS: usize = 2;

/// Restores all rails of `attachment` to the host. A rail must get back its namespace, its name and its RDMA device.
/// Every round tries the other attributes again. The restore gives up an attribute if the kernel still refuses it when
/// nothing else changes. If a temporary state of the machine is the reason, the restore gives up the attribute only
/// after `SETTLING`, and only if an earlier verb also tried (`tries`). After an error the restore continues while
/// rounds make progress. It calls `others` only if a plan depends on other attachments, and `record` before a temporary
/// change of the host's other netdevs.
pub fn restore<K: Kernel>(
    kernel: &K,
    pod: Option<&K::Pod>,
    attachment: &Attachment,
    tries: Tries,
    others: &dyn Fn() -> Result<Others, StoreError>,
    record: &dyn Fn(&[Spared]) -> Result<(), StoreError>,
) -> Result<Restored, Incomplete> {
    let mut restore = Restore::new(kernel, pod, attachment, tries);
    let functions = attachment.vfs();
    loop {
        let mut observed = match kernel.observe_vfs(pod, &functions) {
            Ok(observed) => observed,
            Err(error) if restore.round >= ROUNDS => return Err(Incomplete::of(error)),
            Err(error) => {
                log::warn!("{}: {error}; observing again", attachment.key);
                restore.round += 1;
                continue;
            }
        };
        observe_device_settings(kernel, attachment, &mut observed);
        let mut plans = restore.plan(&observed, others)?;
        let continues = plan::limit_to_batch(&mut plans);
        if plans.iter().all(|it| it.as_ref().is_ok_and(Vec::is_empty)) {
            return Ok(restore.finish(observed));
        }
        if restore.is_settled(&plans) {
            let dispensable = dispensable(&plans, &restore.refused, tries);
            if dispensable.is_empty() {
                return Err(restore.stop(plans, observed));
            }
            restore.give_up(dispensable);
            continue;
        }
        if restore.may_end() {
            kernel.pause(PAUSE);
        }
        log_uppers(attachment, &plans);
        let spared = plan::to_spare(&plans, &observed);
        let recorded = match spared.is_empty() {
            true => Ok(()),
            false => record(&spared),
        };
        let spared = recorded.as_ref().map(|()| &*spared);
        let result = round::run(kernel, pod, (&plans, spared), &observed);
        if continues {
            // only the refusals of this batch count, because the next verb continues the removal
            let mut incomplete = incomplete(vec![], result.refused);
            incomplete.left.push(CONTINUES.to_owned());
            return Err(Incomplete {
                continues,
                ..incomplete
            });
        }
        restore.end_round(plans, result);
    }
}

/// A restore between two rounds. Each round observes, plans and executes.
struct Restore<'a, K: Kernel> {
    kernel: &'a K,
    pod: Option<&'a K::Pod>,
    attachment: &'a Attachment,
    /// The other attachments, after a plan depended on them.
    others: Option<Others>,
    /// Number of ended rounds.
    round: usize,
    /// Time after which the restore does not expect that a refusal passes.
    deadline: Instant,
    given_up: Vec<GivenUp>,
    /// Attributes, with the indexes of their rails, that plans leave out because no observation shows them: missing
    /// netdevs, and settings that drivers accepted and do not report.
    unobservable: Vec<(usize, Attribute)>,
    /// Refusals of the last round.
    refused: Vec<Refusal>,
    /// Plans of the last round. `None` before the first round, and after an attribute was given up.
    last: Option<Vec<RailPlan>>,
    /// Number of repetitions of `last`, with refusals or binds.
    repetitions: usize,
}

impl<'a, K: Kernel> Restore<'a, K> {
    fn new(
        kernel: &'a K,
        pod: Option<&'a K::Pod>,
        attachment: &'a Attachment,
        tries: Tries,
    ) -> Self {
        let rails = 0..attachment.rails.len();
        let netdevs = rails.filter(|_| tries == Tries::Last);
        Self {
            kernel,
            pod,
            attachment,
            others: None,
            round: 0,
            deadline: kernel.now() + SETTLING,
            given_up: vec![],
            unobservable: netdevs.map(|it| (it, Attribute::Netdev)).collect(),
            refused: vec![],
            last: None,
            repetitions: 0,
        }
    }

    /// Returns the attributes that plans leave out, with the indexes of their rails.
    fn left_out(&self) -> Vec<(usize, Attribute)> {
        let given_up = self.given_up.iter();
        let given_up = given_up.map(|it| (it.rail, it.attribute.clone()));
        given_up.chain(self.unobservable.iter().cloned()).collect()
    }

    /// Plans the next round, one plan for each rail. Calls `others` at most once in a restore.
    fn plan(
        &mut self,
        observed: &Observed,
        others: &dyn Fn() -> Result<Others, StoreError>,
    ) -> Result<Vec<RailPlan>, Incomplete> {
        let left_out = self.left_out();
        let plan = |others: &Others| plan::detach(self.attachment, others, observed, &left_out);
        let mut plans = plan(self.others.as_ref().unwrap_or(&Others::default()));
        if self.others.is_none() && Others::are_needed(&plans, self.attachment, observed) {
            plans = plan(self.others.insert(others().map_err(Incomplete::of)?));
        }
        let plans = plans.into_iter().map(|plan| {
            let ops = plan?;
            open_connections::check(self.kernel, self.pod, &ops).map(|()| ops)
        });
        Ok(plans.collect())
    }

    /// Returns true after the number of rounds that a restore can need without refusals.
    fn may_end(&self) -> bool {
        self.round >= ROUNDS && self.last.is_some()
    }

    /// Returns true if further rounds of `plans` change nothing: each plan is empty or has an obstacle, or the kernel
    /// refused the same operations repeatedly, or the time limit has passed.
    fn is_settled(&mut self, plans: &[RailPlan]) -> bool {
        // firmware may keep the pod's GUIDs after every bind of the driver, so a round of binds alone is no progress
        let rebinds = plans.iter().flatten().flatten().any(rebound::is_rebound);
        let is_repeated =
            self.last.as_deref() == Some(plans) && (rebinds || !self.refused.is_empty());
        self.repetitions = if is_repeated { self.repetitions + 1 } else { 0 };
        let may_pass = self.refused.iter().any(|refusal| refusal.is_passing);
        let is_stable = self.repetitions >= MAX_REPETITIONS && !may_pass;
        let mut plans = plans.iter();
        plans.all(|plan| plan.as_ref().map_or(true, Vec::is_empty))
            || self.may_end() && (is_stable || self.kernel.now() >= self.deadline)
    }

    fn give_up(&mut self, attributes: Vec<GivenUp>) {
        self.given_up.extend(attributes);
        self.refused.clear();
        (self.last, self.repetitions) = (None, 0);
    }

    /// Records the result of a round in which `plans` were executed.
    fn end_round(&mut self, plans: Vec<RailPlan>, result: RoundResult) {
        self.refused = result.refused;
        self.unobservable.extend(result.unobservable);
        let made = |kind: fn(&Op) -> bool| {
            let is_refused = self.refused.iter().any(|it| kind(&it.op));
            !is_refused && plans.iter().flatten().flatten().any(kind)
        };
        let is_rebound = made(rebound::is_rebound);
        if is_rebound {
            rebound::wait(self.kernel, self.attachment);
        }
        // a bind or a move may take long, so the time limit starts again after it
        if is_rebound || self.round < ROUNDS && made(is_move) {
            self.deadline = self.kernel.now() + SETTLING;
        }
        self.last = Some(plans);
        self.round += 1;
    }

    /// Ends the restore after all plans were empty. Gives up netdevs that no namespace has.
    fn finish(mut self, observed: Observed) -> Restored {
        log_given_up(self.attachment, &self.given_up);
        let others = self.others.unwrap_or_default();
        for sentence in plan::left_in_pod(self.attachment, &others, &observed) {
            log::warn!("{sentence}");
        }
        for gone in plan::gone(self.attachment, &observed) {
            let why = gone.why(observed.pod.is_some());
            log::warn!("{why}");
            let is_virtual = gone.host_link.parent.is_none();
            // the driver or the pod can make the netdev again, without its host state
            if gone.has_driver || is_virtual && observed.pod.is_some() {
                self.given_up.push(GivenUp {
                    rail: gone.index,
                    attribute: Attribute::Netdev,
                    why,
                });
            }
        }
        let rails = (0..self.attachment.rails.len()).collect();
        Restored::new(rails, observed, self.given_up)
    }

    /// Ends the restore with an error. `plans` are the plans that could not be executed.
    fn stop(mut self, plans: Vec<RailPlan>, observed: Observed) -> Incomplete {
        let left_out = self.left_out();
        let others = self.others.unwrap_or_default();
        let home = plan::home(self.attachment, &others, &observed, &left_out);
        self.given_up.retain(|it| home.contains(&it.rail));
        log_given_up(self.attachment, &self.given_up);
        let restored = Restored::new(home, observed, self.given_up);
        Incomplete {
            restored: Some(Box::new(restored)),
            ..incomplete(plans, self.refused)
        }
    }
}

fn log_given_up(attachment: &Attachment, given_up: &[GivenUp]) {
    for GivenUp { rail, why, .. } in given_up {
        let name = attachment.rails[*rail].name();
        log::warn!("{name} is back on the host, but not fully restored: {why}");
    }
}

/// Logs a warning if the plans remove netdevs on moved rails. Another plugin may have made one of these netdevs.
fn log_uppers(attachment: &Attachment, plans: &[RailPlan]) {
    let moved = plans.iter().zip(&attachment.rails);
    let moved = moved.filter(|(_, rail)| rail.host_link.is_some());
    let mut removed = moved.flat_map(|(plan, _)| {
        let ops = plan.iter().flatten();
        ops.filter_map(plan::child_removed)
    });
    if let Some(first) = removed.next() {
        let count = 1 + removed.count();
        log::warn!(
            "{}: removing the pod's netdevs on its rails ({count}, first {first})",
            attachment.key
        );
    }
}

/// Adds [`rdma_netns::DeviceSettings`] to `observed`, for the rails' netdevs that are on the host under their recorded
/// names.
fn observe_device_settings<K: Kernel>(
    kernel: &K,
    attachment: &Attachment,
    observed: &mut Observed,
) {
    for rail in &attachment.rails {
        let Some((host_link, recorded)) =
            rail.host_link.as_ref().zip(rail.device_settings.as_ref())
        else {
            continue;
        };
        let name = &host_link.name;
        if let Some(link) = observed.host.link(name) {
            if recorded.has(FLOW_RULES, UNREADABLE) && rail.stage != Stage::Returned {
                log::warn!("{name}: its flow rules could not be read at ADD, and stay as they are");
            }
            let settings = kernel.device_settings(link);
            observed.device_settings.push((link.index, settings));
        }
    }
}

/// Returns true if `op` moves a device into another namespace. Network managers then see a new device in that
/// namespace.
fn is_move(op: &Op) -> bool {
    matches!(op, Op::MoveRdma { .. } | Op::MoveLink { .. })
}

/// Returns the attributes to give up: the refused attributes, or all missing attributes if the kernel refused none.
/// Gives up no attribute of a rail while the rail's plan has a mandatory operation. Gives up nothing of a rail if one
/// of its refusals may be temporary and no earlier verb tried.
fn dispensable(plans: &[RailPlan], refused: &[Refusal], tries: Tries) -> Vec<GivenUp> {
    let mut missing = vec![];
    for (rail, plan) in plans.iter().enumerate() {
        let Ok(ops) = plan else {
            continue;
        };
        let given_up = ops.iter().map(|op| {
            Some(GivenUp {
                rail,
                attribute: Attribute::of(op)?,
                why: undone(op),
            })
        });
        let may_pass = refused.iter().any(|it| it.rail == rail && it.is_passing);
        if tries > Tries::First || !may_pass {
            let given_up: Option<Vec<_>> = given_up.collect();
            missing.extend(given_up.unwrap_or_default());
        }
    }
    let mut those_refused: Vec<GivenUp> = vec![];
    for Refusal { rail, op, why, .. } in refused {
        let Some(attribute) = Attribute::of(op) else {
            continue;
        };
        let is_it = |it: &GivenUp| it.rail == *rail && it.attribute == attribute;
        if missing.iter().any(is_it) && !those_refused.iter().any(is_it) {
            those_refused.push(GivenUp {
                rail: *rail,
                why: why.clone(),
                attribute,
            });
        }
    }
    match those_refused.is_empty() {
        true => missing,
        false => those_refused,
    }
}

/// Returns the reasons why the restore is incomplete: obstacles and refused operations, or, if no operation was
/// refused, obstacles and operations without effect.
fn incomplete(plans: Vec<RailPlan>, refused: Vec<Refusal>) -> Incomplete {
    let mut obstacles = plans.iter().filter_map(|it| it.as_ref().err());
    let awaited = obstacles.any(Obstacle::is_awaited);
    let mut left: Vec<String> = refused.into_iter().map(|refusal| refusal.why).collect();
    let has_refusals = !left.is_empty();
    let mut named = vec![];
    for plan in &plans {
        match plan {
            Ok(ops) if !has_refusals => left.extend(ops.iter().map(undone)),
            Ok(_) => {}
            Err(obstacle) => left.push(obstacle.to_string()),
        }
        if let Err(Obstacle::MayBeHosts { indexes, .. }) = plan {
            named.extend(indexes);
        }
    }
    Incomplete {
        awaited,
        named,
        ..Incomplete::from(left)
    }
}

fn undone(op: &Op) -> String {
    format!("another program undid this change: {op}")
}
