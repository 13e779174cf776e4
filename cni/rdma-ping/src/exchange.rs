// SPDX-License-Identifier: Apache-2.0
//! Sends the requests in rounds. A round sends one request for each pair of rails, all at the same time.

use crate::{
    arguments::Arguments,
    icmp,
    outcome::{Outcome, Pair},
    rails::Devices,
    wires,
};
use rdma_netns::sidr::{AskError, Local, Request, ask};
use std::{io, thread, time::Instant};

/// Sends requests for all `pairs` from the calling thread's namespace. After each counted round, calls `seen` with the
/// round's number for each pair that was requested.
pub(crate) fn run(
    arguments: &Arguments,
    devices: &Devices,
    pairs: Vec<Pair>,
    mut seen: impl FnMut(u32, &Outcome) -> io::Result<()>,
) -> io::Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = pairs.into_iter().map(Outcome::new).collect();
    // do not count the first round: the peer's first answer is lost while its kernel resolves this side's hardware
    // address
    round(arguments, devices, &mut outcomes)?;
    for outcome in outcomes.iter_mut().filter(|it| it.is_retryable()) {
        *outcome = Outcome::new(outcome.pair.clone());
    }
    for number in 1..=arguments.count {
        let begin = Instant::now();
        for outcome in round(arguments, devices, &mut outcomes)? {
            seen(number, outcome)?;
        }
        if number < arguments.count && outcomes.iter().any(Outcome::is_retryable) {
            thread::sleep(arguments.interval.saturating_sub(begin.elapsed()));
        }
    }
    let is_silent = |it: &&mut Outcome| it.failure.is_some() && it.is_retryable();
    at_once(outcomes.iter_mut().filter(is_silent), |it| {
        compare(arguments, it);
    })?;
    wires::compare(&mut outcomes);
    Ok(outcomes)
}

/// Runs `work` for all `outcomes` at the same time, each on a separate thread.
///
/// # Errors
/// The system refuses a thread.
fn at_once<'a>(
    outcomes: impl Iterator<Item = &'a mut Outcome>,
    work: impl Fn(&mut Outcome) + Sync,
) -> io::Result<()> {
    thread::scope(|scope| {
        for outcome in outcomes {
            thread::Builder::new().spawn_scoped(scope, || work(outcome))?;
        }
        Ok(())
    })
}

/// Sends a request for each pair for which [`Outcome::is_retryable`] returns true. Returns these pairs.
///
/// # Errors
/// The errors of [`at_once`].
fn round<'a>(
    arguments: &Arguments,
    devices: &Devices,
    outcomes: &'a mut [Outcome],
) -> io::Result<Vec<&'a Outcome>> {
    let mut requested: Vec<&mut Outcome> =
        outcomes.iter_mut().filter(|it| it.is_retryable()).collect();
    at_once(requested.iter_mut().map(|it| &mut **it), |it| {
        request(arguments, devices, it);
    })?;
    Ok(requested.into_iter().map(|it| &*it).collect())
}

fn request(arguments: &Arguments, devices: &Devices, outcome: &mut Outcome) {
    let Some((source, destination)) = outcome.pair.addresses else {
        return;
    };
    let request = Request {
        source,
        destination,
        traffic_class: arguments.traffic_class,
        timeout: arguments.timeout,
    };
    let iwarp = |index| {
        let device = devices.get(&index).filter(|it| it.is_iwarp);
        device.map(|it| it.name.clone())
    };
    let name = |local: Local| {
        let device = devices.get(&local.device);
        (local, device.map_or_else(String::new, |it| it.name.clone()))
    };
    let manager = arguments.manager();
    match ask(&manager, &request, iwarp) {
        Ok(answer) => {
            outcome.sent += 1;
            outcome.times.push(answer.time);
            outcome.local = Some(name(answer.local));
            outcome.failure = None;
        }
        Err(error) => {
            if let AskError::Silent { local, .. } = error {
                outcome.local = Some(name(local));
            }
            outcome.failure = Some(error);
            outcome.sent += u32::from(outcome.is_retryable());
        }
    }
}

/// Sends an ICMP request to a peer that does not answer RDMA.
fn compare(arguments: &Arguments, outcome: &mut Outcome) {
    if let Some((source, to)) = outcome.pair.addresses {
        let bound = outcome.local.as_ref().and_then(|(it, _)| it.address);
        outcome.icmp = Some(icmp::answers(source.or(bound), to, arguments.timeout));
    }
}
