// SPDX-License-Identifier: Apache-2.0
//! Sends the requests in rounds. A round sends one request for each pair of rails, all at the same time.

use crate::{arguments::Arguments, icmp, rails::Device, wires};
use rdma_netns::{
    HardwareAddress,
    sidr::{AskError, Local, Request, ask},
};
use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

/// An own rail, which sends requests, and a rail of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// Name of the own rail. `None`: the kernel's route selects the own rail.
    pub(crate) from: Option<String>,
    /// Description of the peer's rail, such as `rdma0 of default/web`, or its address.
    pub(crate) to: String,
    /// The peer's rail. `None`: only its address is known.
    pub(crate) rail: Option<PeerRail>,
    /// The own address, if it is known, and the peer's address. `None`: the two rails have no addresses of one family.
    pub(crate) addresses: Option<(Option<IpAddr>, IpAddr)>,
    /// True if the two rails must reach each other. With `--exchange`, and between nodes, this applies only to rails on
    /// one network.
    pub(crate) is_required: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerRail {
    /// Name of the pod or node.
    pub(crate) peer: String,
    /// Name of the rail's netdev.
    pub(crate) netdev: String,
    /// Hardware address of the rail, if known.
    pub(crate) mac: Option<HardwareAddress>,
    /// True if both rails of the pair have the same netdev name or, between nodes, the same resource and number. Both
    /// are then on one network.
    pub(crate) is_same: bool,
    /// True if the peer is a node. While a pod has the rail, the node does not have the rail's address.
    pub(crate) is_of_node: bool,
}

/// Result of the requests for a pair.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) pair: Pair,
    pub(crate) sent: u32,
    /// Time until each answer.
    pub(crate) times: Vec<Duration>,
    /// Own end of the requests, and the name of its RDMA device. `None`: the RDMA device has not sent a request yet.
    pub(crate) local: Option<(Local, String)>,
    /// Reason why the latest request has no answer.
    pub(crate) failure: Option<AskError>,
    /// Result of an ICMP request: true if the peer answered. `None`: the command sent no ICMP request, because the peer
    /// answered the latest RDMA request, or because RDMA requests cannot be sent.
    pub(crate) icmp: Option<io::Result<bool>>,
    /// Rail of the peer that answers instead of the expected rail, because cables are swapped.
    pub(crate) swapped_with: Option<String>,
}

impl Outcome {
    /// Returns true if each request was answered, or if the rails of the pair need not reach each other.
    pub(crate) fn is_good(&self) -> bool {
        !self.pair.is_required || self.is_complete()
    }

    /// Returns true if each request was answered.
    pub(crate) fn is_complete(&self) -> bool {
        self.sent > 0 && self.times.len() == self.sent as usize
    }

    fn new(pair: Pair) -> Self {
        Self {
            pair,
            sent: 0,
            times: vec![],
            local: None,
            failure: None,
            icmp: None,
            swapped_with: None,
        }
    }

    /// Returns false if a further request would fail in the same way.
    fn goes_on(&self) -> bool {
        matches!(
            self.failure,
            None | Some(AskError::Silent { .. } | AskError::Unresolved(_) | AskError::NoPath(_))
        ) && self.pair.addresses.is_some()
    }
}

/// Sends requests for all `pairs` from the calling thread's namespace. After each counted round, calls `seen` with the
/// round's number for each pair that was requested.
pub(crate) fn run(
    arguments: &Arguments,
    devices: &BTreeMap<u32, Device>,
    pairs: Vec<Pair>,
    mut seen: impl FnMut(u32, &Outcome) -> io::Result<()>,
) -> io::Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = pairs.into_iter().map(Outcome::new).collect();
    // do not count the first round: the peer's first answer is lost while its kernel resolves this side's hardware
    // address
    round(arguments, devices, &mut outcomes)?;
    for outcome in outcomes.iter_mut().filter(|it| it.goes_on()) {
        *outcome = Outcome::new(outcome.pair.clone());
    }
    for number in 1..=arguments.count {
        let begin = Instant::now();
        for outcome in round(arguments, devices, &mut outcomes)? {
            seen(number, outcome)?;
        }
        if number < arguments.count && outcomes.iter().any(Outcome::goes_on) {
            thread::sleep(arguments.interval.saturating_sub(begin.elapsed()));
        }
    }
    let is_silent = |it: &&mut Outcome| it.failure.is_some() && it.goes_on();
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

/// Sends a request for each pair for which [`Outcome::goes_on`] returns true. Returns these pairs.
///
/// # Errors
/// The errors of [`at_once`].
fn round<'a>(
    arguments: &Arguments,
    devices: &BTreeMap<u32, Device>,
    outcomes: &'a mut [Outcome],
) -> io::Result<Vec<&'a Outcome>> {
    let mut requested: Vec<&mut Outcome> = outcomes.iter_mut().filter(|it| it.goes_on()).collect();
    at_once(requested.iter_mut().map(|it| &mut **it), |it| {
        request(arguments, devices, it);
    })?;
    Ok(requested.into_iter().map(|it| &*it).collect())
}

fn request(arguments: &Arguments, devices: &BTreeMap<u32, Device>, outcome: &mut Outcome) {
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
            outcome.sent += u32::from(outcome.goes_on());
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
