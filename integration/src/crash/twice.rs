// SPDX-License-Identifier: Apache-2.0
//! Two faults in one story. There are two kinds of stories: two verbs are killed, one after the other; or one verb gets
//! an error, and later in the same run is killed or gets another error. At the end DEL runs.

use super::{
    attachment::{Attachments, Verb},
    story::{End, must_succeed},
    sweep::{Extent, Tally, faults},
};
use crate::{
    Invocation,
    tracer::{Fault, Report, point::Point},
};
use nix::libc::EINTR;
use std::ops::Range;

/// Kills each of `firsts` before each of its changes, then each of `seconds` before each of its own changes. If the
/// second verb is ADD, it is another pod's. Then DEL runs. `extent` selects among all pairs. `name` is the row in the
/// table.
#[track_caller]
pub fn two_kills(
    name: &str,
    of: &mut Attachments,
    [firsts, seconds]: [&[Verb]; 2],
    extent: Extent,
) -> Tally {
    let mut tally = Tally {
        name: name.to_owned(),
        ..Tally::default()
    };
    let count = |of: &Attachments, verb: &Verb| (*verb, changes(of, *verb));
    let firsts: Vec<_> = firsts.iter().map(|verb| count(of, verb)).collect();
    let seconds: Vec<_> = seconds.iter().map(|verb| count(of, verb)).collect();
    let mut pairs = vec![];
    for (first, changes) in firsts {
        for at in 1..=changes {
            for (second, changes) in &seconds {
                // after a first verb that ends the attachment, the second verb makes only the remaining changes
                let rest = match first {
                    Verb::Add => *changes,
                    _ => changes.saturating_sub(at) + 1,
                };
                pairs.extend((1..=rest).map(|then| ((first, at), (*second, then))));
            }
        }
    }
    tally.all = pairs.len();
    for ((first, at), (second, then)) in extent.of(pairs) {
        let mut reports = pair(&mut tally, of, (first, at), (second, then));
        let made = reports[1].changes().count();
        // the second verb made fewer changes than in its run without kills
        if reports[1].hit.is_none() && made > 0 {
            reports = pair(&mut tally, of, (first, at), (second, (then - 1) % made + 1));
        }
        match reports.iter().all(|it| it.hit.is_some()) {
            true => tally.killed += 1,
            false => tally.unmet += 1,
        }
    }
    tally.publish();
    tally
}

/// Runs one pair. Each verb is killed before the change with its number. Returns the reports.
#[track_caller]
fn pair(
    tally: &mut Tally,
    of: &mut Attachments,
    (first, at): (Verb, usize),
    (second, then): (Verb, usize),
) -> [Report; 2] {
    let (_, begun) = of.traced(of.first(first), [Fault::Kill(at)]);
    let (_, report) = of.traced(after(of, second), [Fault::Kill(then)]);
    let mut left = must_succeed("DEL", &of.call("DEL", 0).run());
    if second == Verb::Add {
        left.extend(must_succeed("DEL of the other", &of.call("DEL", 1).run()));
    }
    left.extend(of.differences(&[0, 1]));
    let what = format!("{first:?} killed before change {at}, {second:?} before {then}");
    note(tally, of, &what, left);
    [begun, report]
}

/// Runs `verb` once with each error that `extent` selects, and then again with the same error and a kill before one of
/// the later changes. After each run come the calls of [`Attachments::restore`]. `name` is the row in the table.
#[track_caller]
pub fn error_and_kill(name: &str, of: &mut Attachments, verb: Verb, extent: Extent) -> Tally {
    let (errors, mut tally) = begin(name, of, verb);
    for (turn, (error, words)) in extent.of(errors).enumerate() {
        let (end, report) = of.traced(of.first(verb), [error]);
        if report.hit.is_none() {
            tally.unmet += 1;
        } else {
            tally.failed += 1;
            tally.tolerated += usize::from(matches!(end, End::Done(_)));
        }
        let holds = verb != Verb::Add || matches!(end, End::Done(_));
        let kills = changes_after(&report, error);
        // a different kill after each error
        let kill = kills.clone().nth(turn % kills.len().max(1));
        note(&mut tally, of, &words, of.restore(turn, holds));
        let Some(kill) = kill else {
            continue;
        };
        let (end, report) = of.traced(of.first(verb), [error, Fault::Kill(kill)]);
        match end == End::Killed && report.hits == 2 {
            true => tally.killed += 1,
            false => tally.unmet += 1,
        }
        let holds = verb != Verb::Add || of.is_attached();
        let what = format!("{words}, and killed before change {kill}, turn {turn}");
        note(&mut tally, of, &what, of.restore(turn, holds));
    }
    tally.publish();
    tally
}

/// Runs ADD with each error that `extent` selects, and then again with a second error while ADD undoes its changes.
/// After each run come the calls of [`Attachments::restore`]. `name` is the row in the table.
#[track_caller]
pub fn two_errors(name: &str, of: &mut Attachments, extent: Extent) -> Tally {
    let (errors, mut tally) = begin(name, of, Verb::Add);
    for (turn, (error, words)) in extent.of(errors).enumerate() {
        // no call has this fault: with it, the report also has the points that change nothing
        let never = Fault::Fail(usize::MAX, EINTR);
        let (end, report) = of.traced(of.first(Verb::Add), [error, never]);
        note(
            &mut tally,
            of,
            &words,
            of.restore(turn, matches!(end, End::Done(_))),
        );
        let mut seconds = errors_after(&report, error);
        // if ADD cannot write its answer, there is no code to check
        seconds.retain(|(_, words)| !words.ends_with("(the answer)"));
        if matches!(end, End::Done(_)) || seconds.is_empty() {
            continue;
        }
        // chooses an early or a late second error, depending on `turn`
        let (second, then) = &seconds[turn * 7919 % seconds.len()];
        let (end, report) = of.traced(of.first(Verb::Add), [error, *second]);
        match report.hits {
            2 => tally.failed += 1,
            _ => tally.unmet += 1,
        }
        let mut left = of.left_by_two_errors(&end);
        // `true`: for a while, the next call does not release addresses that this ADD could not release
        left.extend(of.restore(turn, true));
        let what = format!("{words}, and then {then}, turn {turn}");
        note(&mut tally, of, &what, left);
    }
    tally.publish();
    tally
}

/// Runs ADD with two errors. The first occurs at the first call whose text contains both words of `first`. The second
/// occurs at the next call whose text contains both words of `then`. Returns ADD's end.
#[track_caller]
pub fn these_two_errors(of: &mut Attachments, first: [&str; 2], then: [&str; 2]) -> End {
    let at = |wanted: [&str; 2], errors: Vec<(Fault, String)>| {
        let has = |(_, words): &&(Fault, String)| wanted.iter().all(|it| words.contains(it));
        let found = errors.iter().find(has).map(|(fault, _)| *fault);
        found.unwrap_or_else(|| panic!("no call can fail with {wanted:?}: {errors:#?}"))
    };
    let error = at(first, begin("two errors", of, Verb::Add).0);
    let never = Fault::Fail(usize::MAX, EINTR);
    let (_, report) = of.traced(of.first(Verb::Add), [error, never]);
    assert_eq!(of.restore(0, false), [""; 0]);
    let second = at(then, errors_after(&report, error));
    let (end, report) = of.traced(of.first(Verb::Add), [error, second]);
    assert_eq!(report.hits, 2);
    let mut left = of.left_by_two_errors(&end);
    left.extend(of.restore(0, true));
    assert_eq!(left, [""; 0]);
    end
}

/// Runs `verb` without an error, then DEL. Returns the possible errors of the run's calls, and a new tally.
#[track_caller]
fn begin(name: &str, of: &Attachments, verb: Verb) -> (Vec<(Fault, String)>, Tally) {
    let (_, report) = of.traced(of.first(verb), None);
    of.call("DEL", 0).run().silent();
    let errors = errors(&report.points);
    let tally = Tally {
        name: name.to_owned(),
        changes: report.changes().count(),
        points: report.points.len(),
        all: errors.len(),
        ..Tally::default()
    };
    (errors, tally)
}

/// Returns the possible errors of calls, with their texts.
fn errors(points: &[Point]) -> Vec<(Fault, String)> {
    let report = Report {
        points: points.to_owned(),
        ..Report::default()
    };
    let mut errors = faults(&report);
    errors.retain(|(fault, _)| matches!(fault, Fault::Fail(..)));
    errors
}

/// Returns the possible errors of the calls that a run made after `error`.
fn errors_after(report: &Report, error: Fault) -> Vec<(Fault, String)> {
    let Some(at) = position(report, error) else {
        return vec![];
    };
    let before = errors(&report.points[..=at]).len();
    errors(&report.points).split_off(before)
}

/// Returns the position of `error` in a run's points.
fn position(report: &Report, error: Fault) -> Option<usize> {
    let Fault::Fail(number, _) = error else {
        return None;
    };
    let points = report.points.iter().enumerate();
    let mut candidates = points.filter(|(_, it)| error.is_possible_at(it));
    let hit = candidates.nth(number - 1).filter(|_| report.hit.is_some());
    hit.map(|(at, _)| at)
}

fn note(tally: &mut Tally, of: &mut Attachments, what: &str, left: Vec<String>) {
    if !left.is_empty() {
        let line = format!("{}: {what}: {left:#?}", tally.name);
        eprintln!("{line}");
        tally.left.push(line);
        of.start_anew();
    }
}

fn after(of: &Attachments, second: Verb) -> Invocation<'_> {
    match second {
        Verb::Del => of.call("DEL", 0),
        Verb::Gc => of.gc(),
        Verb::Add => of.call("ADD", 1),
    }
}

/// Returns the number of changes of a verb.
#[track_caller]
fn changes(of: &Attachments, verb: Verb) -> usize {
    let (_, report) = of.traced(of.first(verb), None);
    of.call("DEL", 0).run().silent();
    report.changes().count()
}

/// Returns the numbers of the changes that a run made after `error`.
fn changes_after(report: &Report, error: Fault) -> Range<usize> {
    let all = report.changes().count();
    let Some(at) = position(report, error) else {
        return 0..0;
    };
    let until = report.points[..=at].iter().filter(|it| it.changes).count();
    until + 1..all + 1
}
