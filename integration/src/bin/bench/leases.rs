// SPDX-License-Identifier: Apache-2.0
//! `rdma-ipam` compared with Debian's `host-local`: the cost of an address if no other address is
//! leased, and if 50,000 others are leased.

use super::{
    figures,
    run::{Run, call, median, row, runs},
};
use cni_protocol::lock::LockDeadline;
use integration::{
    Node,
    plugin::{debian, rdma_cni},
};
use rdma_ipam::store::{Owner, RealDisk, Store};
use serde_json::{Value, json};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
};

const RUNS: usize = 31;
const HELD: u32 = 50_000;

/// One plugin with one range of addresses.
struct Side {
    program: PathBuf,
    directory: PathBuf,
    input: PathBuf,
}

/// Measures with the leases in memory, because `rdma-ipam` waits for a disk and `host-local` does
/// not.
pub(super) fn measure(_: &Node) {
    let memory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let ours = rdma_cni().with_file_name("rdma-ipam");
    let peer = debian("host-local");
    println!(
        "\naddresses from a range, medians of {} runs, in turn\n",
        runs(RUNS)
    );
    println!(
        "{:<34} {:>12} {:>12} {:>8}",
        "", "rdma-ipam", "host-local", "ratio"
    );
    let mut rows = vec![];
    for (family, subnet, start) in [
        (
            "IPv4 /14",
            "10.64.0.0/14",
            IpAddr::V4(Ipv4Addr::new(10, 64, 0, 1)),
        ),
        (
            "IPv6 /64",
            "fd00:be::/64",
            "fd00:be::1".parse::<Ipv6Addr>().expect("an address").into(),
        ),
    ] {
        let sides = ["none", "50,000"].map(|held| {
            [&ours, &peer].map(|program| Side::new(memory.path(), program, subnet, held))
        });
        let [_, [our_full, their_full]] = &sides;
        our_full.fill_ours(start);
        their_full.fill_theirs(start);
        let costs = costs(&sides);
        for (held, costs) in ["none", "50,000"].iter().zip(&costs) {
            for (verb, [ours, theirs]) in ["ADD", "DEL"].iter().zip(costs) {
                let name = format!("{family}, {held} held: {verb}, ms");
                row(&name, *ours, *theirs, 2);
                rows.push((format!("{verb}, {family}, {held}"), vec![*ours, *theirs]));
            }
        }
        let growth = |side: usize| costs[1][0][side] / costs[0][0][side];
        row(&format!("{family}: ADD's growth"), growth(0), growth(1), 2);
    }
    figures::keep("leases", &["rdma-ipam", "host-local"], &rows);
    println!(
        "\nIn memory. On a disk rdma-ipam waits for it (fsync of the leases and their directory), host-local does \
         not: a lease of\nhost-local's can be lost with the machine's power. host-local's DEL reads \
         every lease."
    );
}

/// Returns the medians of ADD and DEL of both plugins, ours first, for each pair of `sides`. All
/// calls take turns, so other load of the machine affects all of them.
fn costs(sides: &[[Side; 2]; 2]) -> [[[f64; 2]; 2]; 2] {
    let mut times: [[[Vec<Run>; 2]; 2]; 2] = Default::default();
    for _ in 0..runs(RUNS) {
        for (pair, times) in sides.iter().zip(&mut times) {
            for (index, side) in pair.iter().enumerate() {
                for (verb, times) in ["ADD", "DEL"].iter().zip(&mut *times) {
                    times[index].push(side.run(verb));
                }
            }
        }
    }
    times.map(|verbs| verbs.map(|sides| sides.map(|runs| median(&runs))))
}

impl Side {
    fn new(memory: &Path, program: &Path, subnet: &str, held: &str) -> Self {
        let name = program.file_name().expect("a name").to_string_lossy();
        let label = format!("{name}-{held}-{}", subnet.replace(['/', ':'], "-"));
        let directory = memory.join(&label);
        let input = memory.join(format!("{label}.json"));
        let configuration = json!({
            "cniVersion": "1.0.0", "name": "bench", "type": "bench",
            "ipam": { "type": *name, "dataDir": directory, "ranges": [[{ "subnet": subnet }]] },
        });
        fs::write(&input, configuration.to_string()).expect("the configuration");
        Self {
            program: program.to_owned(),
            directory,
            input,
        }
    }

    fn run(&self, verb: &str) -> Run {
        let at = (Path::new("/run/netns/none"), "/usr/lib/cni");
        let (run, output) = call(&self.program, verb, at, &self.input);
        if verb == "ADD" {
            let result: Value = serde_json::from_str(&output).expect("a result");
            assert!(result["ips"][0]["address"].is_string(), "{output}");
        }
        run
    }

    /// Writes the leases that the ADDs of 50,000 pods would leave.
    fn fill_ours(&self, start: IpAddr) {
        let store = Store::new(&RealDisk, &self.directory, "bench", LockDeadline::of_verb());
        let leases = store.lock().expect("the lock");
        for number in 0..HELD {
            let owner = owner(number);
            let ip = nth(start, number);
            let draft = store.draft(&owner).expect("a draft");
            leases.reserve(&draft, &[ip]).expect("a lease");
            draft.settle(&store).expect("the draft goes");
        }
        leases
            .set_last("0", nth(start, HELD - 1))
            .expect("the last one");
    }

    /// Writes 50,000 leases in host-local's format.
    fn fill_theirs(&self, start: IpAddr) {
        let directory = self.directory.join("bench");
        fs::create_dir_all(&directory).expect("the directory");
        for number in 0..HELD {
            let path = directory.join(nth(start, number).to_string());
            fs::write(path, owner(number).content()).expect("a lease");
        }
        let last = nth(start, HELD - 1).to_string();
        fs::write(directory.join("last_reserved_ip.0"), last).expect("the last one");
    }
}

fn owner(number: u32) -> Owner {
    Owner {
        container: format!("sandbox{number}"),
        interface: "net1".into(),
    }
}

/// Returns the address of pod `number`, counted from 0. `start` is the gateway's address, which no pod gets.
fn nth(start: IpAddr, number: u32) -> IpAddr {
    match start {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() + 1 + number).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() + 1 + u128::from(number)).into(),
    }
}
