// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin` with kubelet's stand-in, on nodes with eight HCAs, and on a node with 256 virtual functions. No
//! other project is measured. The line above the table shows the machine's load.

use super::{
    machines::{self, Case},
    run::milliseconds,
};
use integration::{
    Daemon,
    daemon::rdma_device_plugin,
    kubelet::{DeviceManager, Resource},
};
use nix::libc;
use std::{
    fs, slice, thread,
    time::{Duration, Instant},
};

/// Number of rounds of calls. The cases take turns after each round.
const ROUNDS: usize = 20;
/// Number of calls of Allocate in a round of one case.
const CALLS: usize = 100;
/// Number of calls of PreStartContainer in a round of one case. These calls take longer.
const FEW: usize = 15;
const IDLE: Duration = Duration::from_secs(60);

/// A running daemon with its stand-in for kubelet.
struct Running {
    // the first field is dropped first: the daemon ends before the files that it uses
    daemon: Daemon,
    kubelet: DeviceManager,
    case: Case,
    ids: Vec<String>,
}

/// A line of the table: a name, and a number for each case.
type Row = (&'static str, Vec<f64>);

pub(super) fn measure() {
    println!("\nrdma-device-plugin by itself; {}\n", conditions());
    let cases = machines::cases();
    let titles: Vec<_> = cases.iter().map(|case| case.title).collect();
    let mut rows: Vec<Row> = vec![];
    let mut row = |name, values: Vec<f64>| rows.push((name, values));

    let (running, lists): (Vec<_>, Vec<_>) = cases.into_iter().map(Running::start).unzip();
    row(
        "ids",
        running.iter().map(|it| count(it.ids.len())).collect(),
    );
    row("start to kubelet's first list, ms", lists);
    let (allocated, slow) = in_turn(&running, Running::allocate);
    row("Allocate, p50, ms", allocated);
    row("Allocate, p99, ms", slow);
    let (checked, slow) = in_turn(&running, Running::before_start);
    row("PreStartContainer, p50, ms", checked);
    row("PreStartContainer, p99, ms", slow);
    let memory = running.iter().map(|it| count(it.daemon.memory()) / 1024.0);
    row("RSS after that, MB", memory.collect());
    let (cpu, sleeps) = idle(&running);
    row("idle for 60 s: CPU, ms", cpu);
    row("idle for 60 s: times it went to sleep", sleeps);
    let head: String = titles
        .iter()
        .map(|title| format!("{title:>15}{:>8}", "to hca"))
        .collect();
    println!("{:<41}{head}", "");
    for (name, values) in rows {
        let digits = if values.iter().all(|it| it.fract() == 0.0) {
            0
        } else {
            2
        };
        let cell = |value: &f64| {
            let ratio = match values[0] {
                0.0 => "-".to_owned(),
                first => format!("{:.2}", value / first),
            };
            format!("{value:>15.digits$}{ratio:>8}")
        };
        println!("{name:<41}{}", values.iter().map(cell).collect::<String>());
    }
    println!(
        "\n{ROUNDS} rounds in turn: {CALLS} Allocate calls, each of one id and with a new grant to record, and {FEW} of \
         PreStartContainer,\nover kubelet's socket, by kubelet's clock.\nAt idle each has its stream open, and all \
         are idle in the same minute. CPU has a grain of 10 ms."
    );
}

impl Running {
    /// Starts the daemon. Returns it, and the time until kubelet has all ids, in ms.
    fn start(case: Case) -> (Self, f64) {
        let kubelet = DeviceManager::started(&case.machine.path("kubelet"));
        let mut command = case.machine.command(&rdma_device_plugin());
        command.args(["--metrics-address", "0.0.0.0:0"]);
        let at = Instant::now();
        let daemon = Daemon::start(&mut command);
        let what = format!("{} ids", case.ids);
        let full = |it: &Resource| it.devices.len() == case.ids;
        let listed = kubelet.wait_for(case.resource, &what, full);
        let took = milliseconds(at.elapsed());
        let ids = listed.healthy().iter().map(|it| (*it).to_owned()).collect();
        let running = Self {
            daemon,
            kubelet,
            case,
            ids,
        };
        assert_eq!(running.ids.len(), running.case.ids, "all are healthy");
        (running, took)
    }

    fn allocate(&self) -> Vec<Duration> {
        let mut times = vec![];
        while times.len() < CALLS {
            // the daemon writes a grant again only if its file is missing
            let _ = fs::remove_dir_all(self.case.machine.path("state/granted"));
            for id in self.ids.iter().take(CALLS - times.len()) {
                let at = Instant::now();
                let given = self
                    .kubelet
                    .ask_for(self.case.resource, &[slice::from_ref(id)]);
                times.push(at.elapsed());
                let given = given.expect("given").container_responses;
                assert!(given[0].devices.len() > 1, "uverbs and rdma_cm: {given:?}");
            }
        }
        times
    }

    /// Returns the durations of PreStartContainer, for ids whose grants exist.
    fn before_start(&self) -> Vec<Duration> {
        let granted = CALLS % self.ids.len();
        let granted = if granted == 0 {
            self.ids.len()
        } else {
            granted
        };
        let granted = self.ids.iter().take(granted).cycle();
        let checked = granted.take(FEW).map(|id| {
            let at = Instant::now();
            let may = self
                .kubelet
                .before_start(self.case.resource, slice::from_ref(id));
            may.expect("it may start");
            at.elapsed()
        });
        checked.collect()
    }
}

/// Returns p50 and p99 of each case, in ms. The cases take turns after each round of `calls`.
fn in_turn(all: &[Running], calls: fn(&Running) -> Vec<Duration>) -> (Vec<f64>, Vec<f64>) {
    let mut times: Vec<_> = all.iter().map(|_| vec![]).collect();
    for _ in 0..ROUNDS {
        for (running, times) in all.iter().zip(&mut times) {
            times.extend(calls(running));
        }
    }
    times.into_iter().map(p50_and_p99).unzip()
}

/// Returns, for each case, the daemon's CPU time in ms, and the number of times that one of its threads went to sleep.
fn idle(all: &[Running]) -> (Vec<f64>, Vec<f64>) {
    // idle threads end only some time after the calls, and delayed work is still to be done
    thread::sleep(Duration::from_secs(15));
    let used = |it: &Running| (it.daemon.ticks(), it.daemon.sleeps());
    let before: Vec<_> = all.iter().map(used).collect();
    thread::sleep(IDLE);
    // SAFETY: sysconf() reads a constant of the system.
    let second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).expect("ticks");
    let pairs = all.iter().map(used).zip(before);
    let spent = pairs.map(|(after, before)| {
        let ticks = (after.0 - before.0) * 1000 / second;
        (count(ticks), count(after.1.saturating_sub(before.1)))
    });
    spent.unzip()
}

/// Returns the conditions of the measurement, such as `2 CPUs, load 0.36, Linux 6.1.0`.
fn conditions() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let load = read("/proc/loadavg");
    format!(
        "{} CPUs, load {}, Linux {}",
        thread::available_parallelism().map_or(1, usize::from),
        load.split(' ').next().unwrap_or_default(),
        read("/proc/sys/kernel/osrelease").trim_end()
    )
}

/// Returns median and 99th percentile in ms.
pub(super) fn p50_and_p99(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at =
        |percent: usize| milliseconds(times[(times.len() * percent / 100).min(times.len() - 1)]);
    (at(50), at(99))
}

fn count(number: impl TryInto<u32>) -> f64 {
    f64::from(number.try_into().unwrap_or(u32::MAX))
}
