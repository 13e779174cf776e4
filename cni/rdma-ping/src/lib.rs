// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin ping`: sends RDMA requests to rails. The peer needs no program ([`rdma_netns::sidr`]). The
//! command reads the kernel's state and the records of pods, and changes nothing.
//!
//! | module | owns |
//! |---|---|
//! | `arguments` | options of the command |
//! | `rails` | rails of the node and of its pods |
//! | `nodes` | rails of nodes, from the API server |
//! | `exchange`, `outcome` | sending of the requests, and their results |
//! | `icmp` | one ICMP echo request, which distinguishes an RDMA fault from a network fault |
//! | `wires` | detection of swapped cables |
//! | `peer`, `list` | the other pod of `--exchange`, and its list of rails |
//! | `statistics` | figures of a pair of rails |
//! | `output` | output as lines, matrix and JSON |
//! | [`fabric`] | `rdma-device-plugin fabric`: the watch over the fabric |

mod arguments;
mod exchange;
pub mod fabric;
mod icmp;
mod list;
mod nodes;
mod outcome;
mod output;
mod peer;
mod rails;
mod statistics;
mod wires;

pub use arguments::{Arguments, Target};
pub use peer::Place;

use attachments::{
    Store,
    pods::netns::{self, PodNetnsError, Sandbox},
};
use list::List;
use nodes::{NodeError, Nodes};
use outcome::{Outcome, Pair};
use peer::{MeetError, Others, Server};
use rails::{Devices, Rail};
use std::{
    io::{self, Write},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};

/// Reason why the command cannot send requests.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Pod(#[from] PodNetnsError),
    #[error(
        "pod {0} has no rails on this node: if it runs on another node, ping the addresses of its rails"
    )]
    NoRails(String),
    #[error(
        "no netdev here has an RDMA device: on a node, see rdma link show; in a pod, check that the pod requests RDMA, \
         and that {manager:?} exists"
    )]
    NoDevices { manager: PathBuf },
    #[error(transparent)]
    Meet(#[from] MeetError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(
        "a node cannot be combined with other targets or --pod: give node {0} as the only target, without --pod"
    )]
    NodeAndOthers(String),
    #[error(
        "{} in the ResourceSlices of node {node}: rails pair by resource and number, so give both nodes the same \
         resources, or ping the addresses of the rails",
        match .from {
            Some(from) => format!("rail {from} of this node is not"),
            None => "no rail of this node is also".to_owned(),
        }
    )]
    NothingInCommon { from: Option<String>, node: String },
    #[error("cannot exchange lists of rails: {0}")]
    Exchange(io::Error),
    #[error("{from} is no rail {place} (rails {place}: {})", if .rails.is_empty() { "none" } else { .rails })]
    UnknownRail {
        from: String,
        place: String,
        rails: String,
    },
    #[error("cannot read the RDMA devices: {0}")]
    Devices(io::Error),
    #[error("cannot enter the network namespace of pod {pod}: {source}")]
    Enter { pod: String, source: io::Error },
    #[error("cannot ping, or write to standard output: {0}")]
    Ping(io::Error),
}

/// Sends requests to the targets, and writes the answers to `output`. Returns exit code 0 if all rails that must reach
/// each other did so without a lost request. On an error, writes one sentence to `errors` and returns exit code 1.
pub fn run(
    arguments: &Arguments,
    output: &mut (dyn Write + Send),
    errors: &mut dyn Write,
) -> ExitCode {
    match ping(arguments, output) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(errors, "rdma-device-plugin ping: {error}");
            ExitCode::FAILURE
        }
    }
}

enum Peer {
    Address(IpAddr),
    Pod { name: String, rails: Vec<Rail> },
}

fn ping(arguments: &Arguments, output: &mut (dyn Write + Send)) -> Result<bool, Failure> {
    if let Some(place) = &arguments.exchange {
        return with_the_other_pod(arguments, place, output);
    }
    if let ([Target::Node(node)], None) = (&*arguments.targets, &arguments.pod) {
        return with_node(arguments, node, output);
    }
    let store = Store::new(&arguments.state_dir);
    let of_pod = |pod: &str| match netns::open(pod, &store) {
        Err(PodNetnsError::NoRecord { .. }) => Err(Failure::NoRails(pod.to_owned())),
        Ok(Sandbox { rails, .. }) if rails.is_empty() => Err(Failure::NoRails(pod.to_owned())),
        Ok(Sandbox { netns, rails }) => {
            let mut rails: Vec<Rail> = rails.into_iter().map(Rail::from).collect();
            // ignore the error: without the permission to enter the namespace, the command does not detect swapped
            // cables
            let _ = netns.run(|| Rail::identify(&mut rails));
            Ok((netns, rails))
        }
        Err(error) => Err(error.into()),
    };
    let peer = |target: &Target| match target {
        Target::Address(address) => Ok(Peer::Address(*address)),
        Target::Pod(pod) => of_pod(pod).map(|(_, rails)| Peer::Pod {
            name: pod.clone(),
            rails,
        }),
        Target::Node(node) => Err(Failure::NodeAndOthers(node.clone())),
    };
    let peers = arguments.targets.iter().map(peer);
    let peers: Vec<Peer> = peers.collect::<Result<_, Failure>>()?;
    let Some(pod) = &arguments.pod else {
        let (devices, own) = here(arguments)?;
        return exchange(arguments, &devices, own, &peers, output);
    };
    let (netns, own) = of_pod(pod)?;
    let inside = || {
        let devices = rails::devices().map_err(Failure::Devices)?;
        exchange(arguments, &devices, own, &peers, output)
    };
    netns.run(inside).map_err(|source| Failure::Enter {
        pod: pod.clone(),
        source,
    })?
}

/// Returns the RDMA devices and rails of the calling thread's namespace.
fn here(arguments: &Arguments) -> Result<(Devices, Vec<Rail>), Failure> {
    let read = || {
        let devices = rails::devices()?;
        let rails = rails::rails(&arguments.manager(), &devices)?;
        Ok((devices, rails))
    };
    read().map_err(Failure::Devices)
}

/// Returns the error for a namespace without rails.
fn no_devices(arguments: &Arguments) -> Failure {
    let manager = arguments.manager();
    Failure::NoDevices { manager }
}

/// Sends requests from each own rail to each rail of the other pod of `place`. Returns true if each own rail reaches
/// the other pod's rail with the same name.
fn with_the_other_pod(
    arguments: &Arguments,
    place: &Place,
    output: &mut (dyn Write + Send),
) -> Result<bool, Failure> {
    let until = Instant::now() + arguments.exchange_timeout;
    let (devices, rails) = here(arguments)?;
    if rails.is_empty() {
        return Err(no_devices(arguments));
    }
    let list = List::of(arguments.name.as_deref(), &rails);
    let listener = place.listen().map_err(Failure::Exchange)?;
    // the server waits until the other pod, which may start late, has sent its requests
    let requests = (arguments.interval + arguments.timeout) * arguments.count.saturating_add(2);
    let timeout = arguments.exchange_timeout + requests;
    let known = Others::default();
    let server = Server::start(listener, &list, &known, timeout);
    let server = server.map_err(Failure::Exchange)?;
    let own = rails::addresses().map_err(Failure::Exchange)?;
    let own: Vec<IpAddr> = own.into_values().flatten().collect();
    let peer = peer::meet(place, &own, &known, until)?;
    let own = (&*list.name, &*rails);
    let other = (&*peer.list.name, &*peer.list.rails);
    let is_good = between(arguments, &devices, own, other, output)?;
    drop(peer);
    server.wait(until.max(Instant::now()) + requests);
    Ok(is_good)
}

/// Sends requests from each own rail in this node's ResourceSlices to the rail of `node` with the same resource and
/// number, or with `--all` to each rail of `node`. Returns true if each of these own rails reaches the rail with the
/// same resource and number.
fn with_node(
    arguments: &Arguments,
    node: &str,
    output: &mut (dyn Write + Send),
) -> Result<bool, Failure> {
    let nodes = Nodes::read(&arguments.service_account_dir, node)?;
    let (devices, rails) = here(arguments)?;
    if rails.is_empty() {
        return Err(no_devices(arguments));
    }
    let from = arguments.from.as_deref();
    let own = in_slices(rails, from, &nodes, node)?;
    let own = (&*nodes.name, &*own);
    between(arguments, &devices, own, (node, &nodes.others), output)
}

/// Returns the rails of `rails` that are in this node's ResourceSlices, with their places. With `from`, omits all rails
/// but the rail that `--from` names.
///
/// # Errors
/// `rails` does not have the named rail, or `node` has none of the returned rails.
fn in_slices(
    rails: Vec<Rail>,
    from: Option<&str>,
    nodes: &Nodes,
    node: &str,
) -> Result<Vec<Rail>, Failure> {
    let mut own = match from {
        Some(from) => named(rails, from, None)?,
        None => rails,
    };
    for rail in &mut own {
        rail.place = nodes.place(&rail.netdev);
    }
    own.retain(|it| it.place.is_some());
    let is_common = |one: &Rail| nodes.others.iter().any(|it| one.is_same(it));
    match own.iter().any(is_common) {
        true => Ok(own),
        false => Err(Failure::NothingInCommon {
            from: from.map(str::to_owned),
            node: node.to_owned(),
        }),
    }
}

/// Sends requests from the rails of this node or pod to the rails of the other node or pod, and writes the result. Each
/// of the two has a name. Returns true if each own rail reaches the other one's rail on the same network.
fn between(
    arguments: &Arguments,
    devices: &Devices,
    (own, rails): (&str, &[Rail]),
    (other, others): (&str, &[Rail]),
    output: &mut (dyn Write + Send),
) -> Result<bool, Failure> {
    let row = |one| others.iter().map(move |it| Pair::of(one, other, it));
    let mut pairs: Vec<Pair> = rails.iter().flat_map(row).collect();
    let all = arguments.all || arguments.exchange.is_some();
    pairs.retain(|it| all || it.is_required);
    let outcomes = exchange::run(arguments, devices, pairs, |_, _| Ok(()));
    let outcomes = outcomes.map_err(Failure::Ping)?;
    let is_alone = |one: &&Rail| !others.iter().any(|it| one.is_same(it));
    let alone = rails.iter().filter(is_alone);
    let alone: Vec<&str> = alone.map(|it| &*it.netdev).collect();
    let text = match arguments.json {
        true => format!(
            "{:#}\n",
            output::exchanged_json(own, other, &outcomes, &alone)
        ),
        false => output::exchanged(own, other, &outcomes, &alone),
    };
    write(output, &text)?;
    Ok(alone.is_empty() && outcomes.iter().all(Outcome::is_good))
}

fn write(output: &mut (dyn Write + Send), text: &str) -> Result<(), Failure> {
    let written = output.write_all(text.as_bytes());
    written.and_then(|()| output.flush()).map_err(Failure::Ping)
}

/// Sends requests to `peers` from the calling thread's namespace. `devices` and `rails` are the RDMA devices and rails
/// of this namespace. Returns true if all requests were answered.
fn exchange(
    arguments: &Arguments,
    devices: &Devices,
    rails: Vec<Rail>,
    peers: &[Peer],
    output: &mut (dyn Write + Send),
) -> Result<bool, Failure> {
    let is_matrix = peers.iter().any(|it| matches!(it, Peer::Pod { .. }));
    let by_route = arguments.from.is_none();
    let own = match &arguments.from {
        Some(from) => named(rails, from, arguments.pod.as_deref())?,
        None if is_matrix && rails.is_empty() => return Err(no_devices(arguments)),
        None => rails,
    };
    let pairs = peers.iter().flat_map(|peer| match peer {
        Peer::Address(address) if by_route => vec![Pair {
            from: None,
            to: address.to_string(),
            rail: None,
            addresses: Some((None, *address)),
            is_required: true,
        }],
        Peer::Address(address) => {
            let pair = |rail: &Rail| Pair {
                from: Some(rail.netdev.clone()),
                to: address.to_string(),
                rail: None,
                addresses: rail.address_for(*address).map(|it| (Some(it), *address)),
                is_required: true,
            };
            own.iter().map(pair).collect()
        }
        Peer::Pod { name, rails } => {
            let pair = |one: &Rail, other: &Rail| Pair {
                to: format!("{} of {name}", other.netdev),
                is_required: true,
                ..Pair::of(one, name, other)
            };
            let row = |one| rails.iter().map(move |other| pair(one, other));
            own.iter().flat_map(row).collect()
        }
    });
    let outcomes =
        exchange::run(
            arguments,
            devices,
            pairs.collect(),
            |round, outcome| match arguments.json || is_matrix {
                true => Ok(()),
                false => output::line(output, round, outcome),
            },
        );
    let outcomes = outcomes.map_err(Failure::Ping)?;
    let text = match (arguments.json, is_matrix) {
        (true, _) => format!("{:#}\n", output::json(&outcomes)),
        (false, true) => output::matrix(&outcomes),
        (false, false) => format!("\n{}", output::summary(&outcomes)),
    };
    write(output, &text)?;
    Ok(outcomes.iter().all(Outcome::is_good))
}

/// Returns the rail of `own` that `--from` names. If `--from` is an address, the returned rail has only this address.
/// `pod` is the pod that has the rails; `None`: the rails are in this program's namespace.
fn named(own: Vec<Rail>, from: &str, pod: Option<&str>) -> Result<Vec<Rail>, Failure> {
    let netdevs: Vec<&str> = own.iter().map(|it| &*it.netdev).collect();
    let rails = netdevs.join(", ");
    let found = own.into_iter().find(|it| it.has(from));
    let mut rail = found.ok_or_else(|| Failure::UnknownRail {
        from: from.to_owned(),
        place: pod.map_or_else(|| "here".to_owned(), |pod| format!("of pod {pod}")),
        rails,
    })?;
    if let Ok(address) = from.parse() {
        rail.addresses = vec![address];
    }
    Ok(vec![rail])
}

#[cfg(test)]
mod tests;
