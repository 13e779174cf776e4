// SPDX-License-Identifier: Apache-2.0
//! Finds the points of a story, and selects those that a run tries.

use super::story::{End, Story};
use crate::{
    extent,
    tracer::{
        Fault, Report,
        point::{Point, is_sync},
    },
};
use nix::errno::Errno;
use std::{
    any::Any,
    collections::BTreeMap,
    env, fmt,
    fs::OpenOptions,
    io::Write,
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Number of differences after which a story ends.
const ENOUGH: usize = 40;

/// Maximum number of tries of one fault in [`at`], which repeats a try in which the fault does not occur at its call.
/// The order of threads' calls varies between tries, especially on a busy machine.
const TRIES: usize = 20;

/// Number of errors to try among errors whose texts differ only in numbers. One GID table alone is a thousand files.
const ALIKE: usize = 4;

/// Selects the faults to try.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Only every `every`th fault is tried.
    pub every: usize,
    /// Index of the first fault, modulo the distance of the selected faults.
    pub first: usize,
    /// At most this many faults are tried, spread evenly.
    pub most: usize,
}

impl Extent {
    /// All faults of a story.
    pub const ALL: Self = Self::spread(0, usize::MAX);

    /// Selects at most `most` faults, spread evenly. `first` shifts the selection.
    pub const fn spread(first: usize, most: usize) -> Self {
        Self {
            every: 1,
            first,
            most,
        }
    }

    /// Returns the selection for a run of `scripts/test`: one fault in ten, with `--full` all. `RDMA_CRASH_EVERY` of
    /// `scripts/crash` overrides the number. Each story has another value of `first`.
    pub fn of_test(first: usize) -> Self {
        Self::of_run(first, extent::of(10, 1))
    }

    /// Returns the selection like [`Self::of_test`], for a story that takes half a second for each fault: one fault in
    /// twenty.
    pub fn of_slow(first: usize) -> Self {
        Self::of_run(first, extent::of(20, 1))
    }

    /// Returns the selection like [`Self::of_slow`], for a story that differs little from another story: one fault in
    /// fifty.
    pub fn of_variant(first: usize) -> Self {
        Self::of_run(first, extent::of(50, 1))
    }

    fn of_run(first: usize, usual: usize) -> Self {
        let value = env::var("RDMA_CRASH_EVERY").ok();
        let every = value.map_or(usual, |it| it.parse().expect("a number"));
        Self {
            every,
            first: first % every,
            most: usize::MAX,
        }
    }

    /// Returns the selected elements of `all`.
    pub(super) fn of<T>(self, all: Vec<T>) -> impl Iterator<Item = T> {
        let step = self.every.max(all.len().div_ceil(self.most));
        all.into_iter().skip(self.first % step).step_by(step)
    }
}

/// Faults, each with a text for reports.
pub(super) type Faults = Vec<(Fault, String)>;

/// Results of a story.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The story's name.
    pub name: String,
    /// Number of system calls that change something.
    pub changes: usize,
    /// Number of system calls at which a fault is possible.
    pub points: usize,
    /// Number of possible faults.
    pub all: usize,
    /// Number of kills.
    pub killed: usize,
    /// Number of calls that were made to fail.
    pub failed: usize,
    /// Number of failed calls after which the program still succeeded.
    pub tolerated: usize,
    /// Number of faults that did not occur, because the run had fewer calls than the recorded run.
    pub unmet: usize,
    /// Number of faults that occurred at a call of another name than the recorded run's call with the same number.
    pub elsewhere: usize,
    /// Faults after which the story went wrong, each with the differences from the expected state, or with the panic.
    pub left: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [changes, points, all, killed, failed, tolerated, unmet] = self.numbers();
        write!(
            f,
            "{}: {points} calls, {changes} of them changes; of {all} faults {killed} kills and {failed} errors \
             ({tolerated} tolerated), {unmet} not met; left something: {}",
            self.name,
            self.left.len()
        )
    }
}

impl Tally {
    /// Panics on a difference, if no fault occurred, or if more than one in `most_unmet` of the tried faults did not
    /// occur. A run that waits for the kernel may read the kernel's state less often than the recorded run, so some
    /// faults may not occur.
    #[track_caller]
    pub fn assert_nothing_left(&self, most_unmet: usize) {
        let met = self.killed + self.failed;
        assert!(met > 0, "{self}");
        assert!(self.unmet * most_unmet <= met + self.unmet, "{self}");
        assert!(self.left.is_empty(), "{self}\n{}", self.left.join("\n"));
    }

    fn numbers(&self) -> [usize; 7] {
        [
            self.changes,
            self.points,
            self.all,
            self.killed,
            self.failed,
            self.tolerated,
            self.unmet,
        ]
    }

    /// Prints the results, and adds a line to the table of `scripts/crash`.
    #[track_caller]
    pub(super) fn publish(&self) {
        println!("{self}");
        let Some(table) = env::var_os("RDMA_CRASH_TABLE") else {
            return;
        };
        let [changes, points, all, killed, failed, tolerated, unmet] = self.numbers();
        let mut cells = vec![self.name.clone()];
        let numbers = [
            points,
            changes,
            all,
            killed,
            failed,
            tolerated,
            unmet,
            self.left.len(),
        ];
        cells.extend(numbers.map(|it| it.to_string()));
        let line = format!("{}\n", cells.join("\t"));
        let file = OpenOptions::new().append(true).open(table);
        let written = file.and_then(|mut it| it.write_all(line.as_bytes()));
        written.expect("the table is written");
    }
}

/// Runs `story` without a fault, then with each kill and each error that `extent` selects.
#[track_caller]
pub fn sweep(story: &mut dyn Story, extent: Extent) -> Tally {
    let (faults, mut tally) = without_fault(story);
    let (errors, kills) = by_kind(faults);
    let chosen = extent.of(kills).chain(extent.of(errors));
    run_each(story, chosen, &mut tally);
    tally.publish();
    tally
}

/// Runs `story` like [`sweep`], with the kills that `kills` selects and the errors that `errors` selects. Tries only a
/// few of similar errors.
#[track_caller]
pub fn kills_and_errors(story: &mut dyn Story, kills: Extent, errors: Extent) -> Tally {
    let (faults, mut tally) = without_fault(story);
    let (all_errors, all_kills) = by_kind(faults);
    let chosen = kills.of(all_kills).chain(errors.of(unlike(all_errors)));
    run_each(story, chosen, &mut tally);
    tally.publish();
    tally
}

/// Splits `faults` into errors and kills.
fn by_kind(faults: Faults) -> (Faults, Faults) {
    let is_error = |(fault, _): &(Fault, String)| matches!(fault, Fault::Fail(..));
    faults.into_iter().partition(is_error)
}

/// Runs `story` like [`sweep`], with the faults whose texts contain both words of an element of `points`. These faults
/// once left something. For each element, at least one fault must occur at its call. A fault that occurs at its call in
/// no try counts as unmet.
#[track_caller]
pub fn at(story: &mut dyn Story, points: &[[&str; 2]]) -> Tally {
    let (faults, mut tally) = without_fault(story);
    tally.name = format!("{}, once", tally.name);
    let mut never = 0;
    for point in points {
        let is_it = |fault: &&(Fault, String)| point.iter().all(|it| fault.1.contains(it));
        let mut met = faults.iter().filter(is_it).peekable();
        assert!(met.peek().is_some(), "{} has no {point:?}", tally.name);
        let mut is_met = false;
        for fault in met {
            let missed = (0..TRIES).take_while(|_| {
                let missed = tally.unmet + tally.elsewhere;
                run_each(story, iter::once(fault.clone()), &mut tally);
                tally.unmet + tally.elsewhere > missed
            });
            let missed = missed.count();
            tally.unmet = never + usize::from(missed == TRIES);
            never = tally.unmet;
            is_met |= missed < TRIES;
        }
        assert!(is_met, "{}: {point:?} is not met", tally.name);
    }
    tally.publish();
    tally
}

/// Runs `story` like [`sweep`], with a kill before each sync (by any system call), and with one after the last change.
/// `what` is the fault's name in the table.
#[track_caller]
pub fn at_syncs(story: &mut dyn Story, what: &str) -> Tally {
    let (faults, mut tally) = without_fault(story);
    tally.name = format!("{}, {what}", tally.name);
    let is_before_sync = |words: &str| {
        let call = words.strip_prefix("killed before ");
        let call = call.and_then(|it| it.split(' ').next());
        call.is_some_and(is_sync)
    };
    let (syncs, others): (Vec<_>, Vec<_>) = faults
        .into_iter()
        .partition(|(_, words)| is_before_sync(words));
    assert!(!syncs.is_empty(), "{} syncs nothing", tally.name);
    let last = others
        .into_iter()
        .filter(|(fault, _)| matches!(fault, Fault::KillAfter(_)));
    run_each(story, syncs.into_iter().chain(last), &mut tally);
    tally.publish();
    tally
}

/// Returns all faults of a story, with texts, from its shortest run without a fault.
#[track_caller]
fn without_fault(story: &mut dyn Story) -> (Faults, Tally) {
    let runs = (0..story.recordings()).map(|_| recorded(story));
    let shortest = runs.min_by_key(|report| report.points.len());
    let report = shortest.expect("a story is recorded");
    let faults = faults(&report);
    let tally = Tally {
        name: story.name().to_owned(),
        changes: report.changes().count(),
        points: report.points.len(),
        all: faults.len(),
        ..Tally::default()
    };
    (faults, tally)
}

/// Returns the report of a run without a fault.
#[track_caller]
fn recorded(story: &mut dyn Story) -> Report {
    let (end, report) = story.run(None);
    assert!(matches!(end, End::Done(_)), "{}: {end:?}", story.name());
    let left = story.put_right(&end, 0);
    assert!(
        left.is_empty(),
        "{} without a fault: {left:#?}",
        story.name()
    );
    report
}

fn run_each(
    story: &mut dyn Story,
    faults: impl Iterator<Item = (Fault, String)>,
    tally: &mut Tally,
) {
    for (turn, (fault, what)) in faults.enumerate() {
        let result = catch_unwind(AssertUnwindSafe(|| {
            run_one(story, (fault, &what), turn, tally)
        }));
        let left = result.unwrap_or_else(|panic| vec![words(&*panic)]);
        if !left.is_empty() {
            let line = format!("{}: {what}, turn {turn}: {left:#?}", story.name());
            eprintln!("{line}");
            tally.left.push(line);
            story.start_anew();
        }
        if tally.left.len() == ENOUGH {
            break;
        }
    }
}

fn run_one(
    story: &mut dyn Story,
    (fault, what): (Fault, &str),
    turn: usize,
    tally: &mut Tally,
) -> Vec<String> {
    let (mut end, mut report) = story.run(Some(fault));
    let mut left = vec![];
    if report.hit.is_none() {
        // runs the story again, because the number of its calls varies
        left = story.put_right(&end, turn);
        (end, report) = story.run(Some(fault));
    }
    let is_elsewhere = |hit: &Point| !what.contains(&format!(" {} ", hit.call));
    tally.elsewhere += usize::from(report.hit.as_ref().is_some_and(is_elsewhere));
    if report.hit.is_none() {
        tally.unmet += 1;
    } else if matches!(fault, Fault::Fail(..)) {
        tally.failed += 1;
        tally.tolerated += usize::from(matches!(end, End::Done(_)));
    } else {
        tally.killed += 1;
    }
    left.extend(story.put_right(&end, turn));
    if let (false, Some(hit)) = (left.is_empty(), report.hit) {
        left.push(format!("it was at {} ({})", hit.call, hit.what));
    }
    left
}

/// Returns all faults with their texts: a kill before each call that changes something, a kill after the last such
/// call, a kill before each call that sends to another process, and each error of each call.
pub(super) fn faults(report: &Report) -> Faults {
    let mut faults = vec![];
    let mut counts = BTreeMap::<&str, usize>::new();
    let mut candidates = BTreeMap::<i32, usize>::new();
    let (mut changes, mut sends, last) = (0, 0, report.changes().count());
    for point in &report.points {
        let count = counts.entry(&point.call).or_default();
        *count += 1;
        let what = format!("{} {} ({})", point.call, *count, point.what);
        if point.changes {
            changes += 1;
            faults.push((Fault::Kill(changes), format!("killed before {what}")));
            if changes == last {
                faults.push((Fault::KillAfter(changes), format!("killed after {what}")));
            }
        }
        if point.sends {
            sends += 1;
            faults.push((
                Fault::KillBeforeSend(sends),
                format!("killed before {what}"),
            ));
        }
        for errno in &point.errors {
            let error = Errno::from_raw(*errno);
            let number = candidates.entry(*errno).or_default();
            *number += 1;
            faults.push((Fault::Fail(*number, *errno), format!("{error:?} of {what}")));
        }
    }
    faults
}

/// Returns `faults` in their order. Of faults whose texts differ only in numbers, returns a few, spread evenly.
fn unlike(faults: Faults) -> Faults {
    let mut alike = BTreeMap::<String, Vec<(usize, (Fault, String))>>::new();
    for (at, fault) in faults.into_iter().enumerate() {
        let kind = fault.1.replace(|it: char| it.is_ascii_digit(), "");
        alike.entry(kind).or_default().push((at, fault));
    }
    let few = Extent::spread(0, ALIKE);
    let mut chosen: Vec<_> = alike.into_values().flat_map(|all| few.of(all)).collect();
    chosen.sort_by_key(|(at, _)| *at);
    chosen.into_iter().map(|(_, fault)| fault).collect()
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|it| (*it).to_owned()));
    text.unwrap_or_else(|| "a panic without words".to_owned())
}
