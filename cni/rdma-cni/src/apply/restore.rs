// SPDX-License-Identifier: Apache-2.0
//! Restores rails to the host. If one rail or attribute fails, the restore continues with the other rails and
//! attributes.

use super::{ROUNDS, Tries, busy, busy::PAUSE, rebound};
use crate::open_connections;
use attachments::{Attachment, Attribute, Spared, Stage, given_up::Lack, store::StoreError};
use nix::libc;
use plan::{self, Obstacle, Others, RailPlan};
use rdma_netns::{
    Kernel, LinkChange, Observed, Op, OpError,
    device_settings::{FLOW_RULES, UNREADABLE},
};
use std::time::Duration;

/// Time limit for repeated tries, from the start of the restore, or from its last move or bind. The restore repeats its
/// tries while another program, such as a network manager, changes the netdev, while memory is short, or while a driver
/// is busy.
const SETTLING: Duration = Duration::from_secs(2);

/// The reasons why an attachment is not restored, one sentence for each.
#[derive(Debug, Default, thiserror::Error)]
#[error("{}", left.join("; "))]
pub struct Incomplete {
    /// The reasons, as sentences.
    pub left: Vec<String>,
    /// True if a later try may succeed: the kernel returns the devices of a dying namespace with a delay, or a driver
    /// makes a missing netdev again.
    pub awaited: bool,
    /// True if the pod has more netdevs than one verb may remove under the node's lock. The next verb removes more.
    pub continues: bool,
    /// Indexes of the pod's netdevs that may belong to the host, and that the error message names.
    pub named: Vec<u32>,
    /// The restored rails. A restored rail may lack attributes that the restore gave up. `None`: no rail becomes free
    /// for other pods.
    pub restored: Option<Box<Restored>>,
}

/// Makes an error with these reasons, after which the verb does not wait and try again.
impl From<Vec<String>> for Incomplete {
    fn from(left: Vec<String>) -> Self {
        Self {
            left,
            ..Self::default()
        }
    }
}

impl Incomplete {
    /// Makes an error with one reason, after which the verb does not wait and try again.
    pub fn of(reason: impl ToString) -> Self {
        vec![reason.to_string()].into()
    }

    /// Returns the indexes of the restored rails.
    pub fn home(&self) -> &[usize] {
        self.restored.as_ref().map_or(&[], |it| &it.rails)
    }

    /// Returns true if nothing failed, and the restore only left netdevs that the next DEL, GC or ADD removes.
    pub fn only_continues(&self) -> bool {
        self.continues && self.left.len() == 1
    }

    /// Combines the reasons of two results.
    pub fn and(mut self, other: Self) -> Self {
        self.left.extend(other.left);
        self.awaited |= other.awaited;
        self.continues |= other.continues;
        self.named.extend(other.named);
        self.restored = self.restored.or(other.restored);
        self
    }
}

/// Rails that are restored.
#[derive(Debug)]
pub struct Restored {
    /// Indexes of the rails.
    pub rails: Vec<usize>,
    /// The observed state after the restore.
    pub observed: Observed,
    /// Attributes that this try gave up.
    pub given_up: Vec<GivenUp>,
    /// Attributes that the netdevs lack, from [`given_up::note`](crate::given_up::note).
    pub lacks: Vec<Lack>,
    /// True if a network manager may remove restored addresses.
    pub has_to_outlast: bool,
}

impl Restored {
    fn new(rails: Vec<usize>, observed: Observed, given_up: Vec<GivenUp>) -> Self {
        Self {
            rails,
            observed,
            given_up,
            lacks: vec![],
            has_to_outlast: false,
        }
    }
}

/// An attribute that the restore could not restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// Index of the rail, from 0.
    pub rail: usize,
    /// The attribute.
    pub attribute: Attribute,
    /// The reason, as a sentence that names the refused change.
    pub why: String,
}

/// Reason that a verb reports when it leaves netdevs for the next verb to remove.
const CONTINUES: &str = "the removal of the netdevs that the pod made on its rails continues with the next DEL, GC or ADD";

/// Number of repetitions of the same plan, with refusals or binds, after which the restore expects no further change.
const SAME_ROUNDS: usize = 2;

/// Errors that a temporary state of the machine causes, and not the request.
const PASSING: [i32; 4] = [libc::ENOMEM, libc::ENOBUFS, libc::EAGAIN, libc::EINTR];

/// Returns a sentence about the kernel's refusal, and true if a later try may succeed.
fn refusal_of(error: OpError) -> (String, bool) {
    let is_passing = busy::is_busy(&error) || error.errno().is_some_and(|it| PASSING.contains(&it));
    (error.to_string(), is_passing)
}

struct Refusal {
    rail: usize,
    op: Op,
    why: String,
    is_passing: bool,
}

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
    let mut deadline = kernel.now() + SETTLING;
    let functions = attachment.vfs();
    let mut known: Option<Others> = None;
    let mut given_up: Vec<GivenUp> = vec![];
    // attributes that plans leave out, because no observation shows them: missing netdevs, and settings that drivers
    // accepted and do not report
    let rails = 0..attachment.rails.len();
    let netdevs = rails.filter(|_| tries == Tries::Last);
    let mut set: Vec<(usize, Attribute)> = netdevs.map(|it| (it, Attribute::Netdev)).collect();
    let mut refused: Vec<Refusal> = vec![];
    // plans of the last round
    let mut last: Option<Vec<RailPlan>> = None;
    let mut same = 0;
    let mut round = 0;
    loop {
        let mut observed = match kernel.observe_vfs(pod, &functions) {
            Ok(observed) => observed,
            Err(error) if round >= ROUNDS => return Err(Incomplete::of(error)),
            Err(error) => {
                log::warn!("{}: {error}; observing again", attachment.key);
                round += 1;
                continue;
            }
        };
        observe_device_settings(kernel, attachment, &mut observed);
        let left_out = given_up.iter().map(|it| (it.rail, it.attribute.clone()));
        let left_out: Vec<_> = left_out.chain(set.iter().cloned()).collect();
        let plan = |others: &Others| plan::detach_beside(attachment, others, &observed, &left_out);
        let mut plans = plan(known.as_ref().unwrap_or(&Others::default()));
        if known.is_none() && Others::are_needed(&plans, attachment, &observed) {
            let others = others().map_err(Incomplete::of)?;
            plans = plan(known.insert(others));
        }
        let plans = plans.into_iter().map(|plan| {
            let ops = plan?;
            open_connections::check(kernel, pod, &ops).map(|()| ops)
        });
        let mut plans: Vec<RailPlan> = plans.collect();
        let continues = plan::limit_to_batch(&mut plans);
        if plans
            .iter()
            .all(|plan| plan.as_ref().is_ok_and(Vec::is_empty))
        {
            log_given_up(attachment, &given_up);
            let others = known.unwrap_or_default();
            for sentence in plan::left_in_pod(attachment, &others, &observed) {
                log::warn!("{sentence}");
            }
            for gone in plan::gone(attachment, &observed) {
                let why = gone.why(observed.pod.is_some());
                log::warn!("{why}");
                let is_virtual = gone.host_link.parent.is_none();
                // the driver or the pod can make the netdev again, without its host state
                if gone.has_driver || is_virtual && observed.pod.is_some() {
                    given_up.push(GivenUp {
                        rail: gone.index,
                        attribute: Attribute::Netdev,
                        why,
                    });
                }
            }
            let rails = (0..attachment.rails.len()).collect();
            return Ok(Restored::new(rails, observed, given_up));
        }
        // all plans are empty or have an obstacle, which further rounds do not remove
        let nothing_to_do = plans
            .iter()
            .all(|plan| plan.as_ref().map_or(true, Vec::is_empty));
        // firmware may keep the pod's GUIDs after every bind of the driver, so a round of binds alone is no progress
        let rebinds = plans.iter().flatten().flatten().any(rebound::is_rebound);
        let is_same = last.as_ref() == Some(&plans) && (rebinds || !refused.is_empty());
        same = if is_same { same + 1 } else { 0 };
        let may_pass = refused.iter().any(|refusal| refusal.is_passing);
        let is_settled = same >= SAME_ROUNDS && !may_pass || kernel.now() >= deadline;
        if nothing_to_do || round >= ROUNDS && last.is_some() && is_settled {
            let more = dispensable(&plans, &refused, tries);
            if more.is_empty() {
                let others = known.unwrap_or_default();
                let home = plan::home(attachment, &others, &observed, &left_out);
                given_up.retain(|it| home.contains(&it.rail));
                log_given_up(attachment, &given_up);
                let restored = Restored::new(home, observed, given_up);
                return Err(Incomplete {
                    restored: Some(Box::new(restored)),
                    ..incomplete(plans, refused)
                });
            }
            given_up.extend(more);
            refused.clear();
            (last, same) = (None, 0);
            continue;
        }
        if round >= ROUNDS && last.is_some() {
            kernel.pause(PAUSE);
        }
        log_uppers(attachment, &plans);
        let spared = plan::to_spare(&plans, &observed);
        let unrecorded = match spared.is_empty() {
            true => None,
            false => record(&spared).err(),
        };
        let spared = match &unrecorded {
            None => Ok(&*spared),
            Some(error) => Err(error),
        };
        let round_made = make(kernel, pod, (&plans, spared), &observed);
        refused = round_made.refused;
        if continues {
            // only the refusals of this batch count, because the next verb continues the removal
            let mut incomplete = incomplete(vec![], refused);
            incomplete.left.push(CONTINUES.to_owned());
            return Err(Incomplete {
                continues,
                ..incomplete
            });
        }
        set.extend(round_made.set);
        let made = |kind: fn(&Op) -> bool| {
            let is_refused = refused.iter().any(|it| kind(&it.op));
            !is_refused && plans.iter().flatten().flatten().any(kind)
        };
        let is_rebound = made(rebound::is_rebound);
        if is_rebound {
            rebound::wait(kernel, attachment);
        }
        // a bind or a move may take long, so the time limit starts again after it
        if is_rebound || round < ROUNDS && made(is_move) {
            deadline = kernel.now() + SETTLING;
        }
        last = Some(plans);
        round += 1;
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

/// Result of executing the plans of all rails in one round.
#[derive(Default)]
struct Made {
    refused: Vec<Refusal>,
    /// Settings that drivers accepted and do not report, each with the index of its rail.
    set: Vec<(usize, Attribute)>,
}

/// Executes the plans of all rails. If an operation fails and later operations depend on it, the rail's plan ends.
/// Other failed operations are skipped, so a refused alias does not keep a NIC down. An operation that would also
/// change other netdevs of the host counts as failed. First tries to remove all children by one deletion. The netdevs
/// in `spared` keep their default routers. If `spared` could not be recorded, operations that would drop these routers
/// fail.
fn make<K: Kernel>(
    kernel: &K,
    pod: Option<&K::Pod>,
    (plans, spared): (&[RailPlan], Result<&[Spared], &StoreError>),
    observed: &Observed,
) -> Made {
    let mut made = Made::default();
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
                made.set.extend(unreported.map(|it| (rail, it)));
                continue;
            };
            made.refused.push(Refusal {
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
    made
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
