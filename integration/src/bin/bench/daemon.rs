// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin`, as kubelet has it: eight HCAs with a thousand ids, and 256 virtual
//! functions. Nobody else's numbers are beside these; what the machine did is above them.

use super::{
    machines::{self, Case},
    run::milliseconds,
};
use integration::{
    Daemon,
    daemon::rdma_device_plugin,
    kubelet::{DeviceManager, Resource},
};
use nix::{libc, sys::signal::Signal};
use std::{
    fs, slice, thread,
    time::{Duration, Instant},
};

/// Calls of Allocate.
const CALLS: usize = 2000;
/// Of what takes longer.
const FEW: usize = 300;
/// How often a device goes and comes.
const PLUGS: usize = 20;
const IDLE: Duration = Duration::from_secs(60);

/// What a kubelet and its daemon are to each other.
struct Running {
    // the daemon ends before what it uses goes
    daemon: Daemon,
    kubelet: DeviceManager,
    case: Case,
    ids: Vec<String>,
}

/// A line of the table: a name, and a number for each case; none: it is not measured there.
type Row = (&'static str, Vec<Option<f64>>);

pub(super) fn measure() {
    println!("\nrdma-device-plugin by itself; {}\n", conditions());
    let cases = machines::cases();
    let titles: Vec<_> = cases.iter().map(|case| case.title).collect();
    let mut rows: Vec<Row> = vec![];
    let mut row =
        |name, values: Vec<f64>| rows.push((name, values.into_iter().map(Some).collect()));

    let (running, lists): (Vec<_>, Vec<_>) = cases.into_iter().map(Running::start).unzip();
    row(
        "ids",
        running.iter().map(|it| count(it.ids.len())).collect(),
    );
    row("start to kubelet's first list, ms", lists);
    let preferred = running.iter().map(Running::prefer).collect();
    row("GetPreferredAllocation of all, mean, ms", preferred);
    let (allocated, slow): (Vec<_>, Vec<_>) = running.iter().map(Running::allocate).unzip();
    row("Allocate, p50, ms", allocated);
    row("Allocate, p99, ms", slow);
    let (checked, slow): (Vec<_>, Vec<_>) = running.iter().map(Running::before_start).unzip();
    row("PreStartContainer, p50, ms", checked);
    row("PreStartContainer, p99, ms", slow);
    let memory = running.iter().map(|it| count(it.daemon.memory()) / 1024.0);
    row("RSS after that, MB", memory.collect());
    let (cpu, sleeps) = idle(&running);
    row("idle for 60 s: CPU, ms", cpu);
    row("idle for 60 s: times it went to sleep", sleeps);
    let (gone, back): (Vec<_>, Vec<_>) = running.iter().map(Running::plug).unzip();
    rows.push(("unplugged, SIGHUP: new list, p50, ms", gone));
    rows.push(("plugged in, SIGHUP: new list, p50, ms", back));

    let head: String = titles
        .iter()
        .map(|title| format!("{title:>15}{:>8}", "to hca"))
        .collect();
    println!("{:<41}{head}", "");
    for (name, values) in rows {
        let digits = values.iter().flatten().all(|it| it.fract() == 0.0);
        let first = values.first().copied().flatten();
        let cell = |value: &Option<f64>| {
            let ratio = value.zip(first).filter(|(_, first)| *first != 0.0);
            let ratio = ratio.map_or("-".to_owned(), |(value, first)| {
                format!("{:.2}", value / first)
            });
            match value {
                Some(value) if digits => format!("{value:>15.0}{ratio:>8}"),
                Some(value) => format!("{value:>15.2}{ratio:>8}"),
                None => format!("{:>15}{ratio:>8}", "-"),
            }
        };
        println!("{name:<41}{}", values.iter().map(cell).collect::<String>());
    }
    println!(
        "\n{CALLS} Allocate calls, each of one id and with a new grant to record, {FEW} \
         PreStartContainer and\n{FEW} GetPreferredAllocation, over kubelet's socket, by kubelet's \
         clock; {PLUGS} times unplugged and plugged in.\nAt idle each has its stream open, and all \
         are idle in the same minute. CPU has a grain of 10 ms."
    );
}

impl Running {
    /// And what its start took, ms.
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

    /// The mean, ms.
    fn prefer(&self) -> f64 {
        let at = Instant::now();
        for _ in 0..FEW {
            let preferred = self.kubelet.prefer(self.case.resource, &self.ids, &[], 1);
            assert_eq!(preferred.expect("a preference").len(), 1);
        }
        milliseconds(at.elapsed()) / count(FEW)
    }

    /// p50 and p99, ms.
    fn allocate(&self) -> (f64, f64) {
        let mut times = vec![];
        while times.len() < CALLS {
            // an id that has its grant is not recorded again
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
        p50_and_p99(times)
    }

    /// The same, of the check before a container starts.
    fn before_start(&self) -> (f64, f64) {
        let granted = self.ids.iter().take(CALLS).cycle();
        let checked = granted.take(FEW).map(|id| {
            let at = Instant::now();
            let may = self
                .kubelet
                .before_start(self.case.resource, slice::from_ref(id));
            may.expect("it may start");
            at.elapsed()
        });
        p50_and_p99(checked.collect())
    }

    /// Medians of a device's end and its return until kubelet knows, ms; none where no device is
    /// an id of its own.
    fn plug(&self) -> (Option<f64>, Option<f64>) {
        let Some(last) = &self.case.last else {
            return (None, None);
        };
        let (mut gone, mut back) = (vec![], vec![]);
        let until = |healthy: usize| {
            let at = Instant::now();
            self.daemon.signal(Signal::SIGHUP);
            let what = format!("{healthy} healthy ids");
            let known = |it: &Resource| it.healthy().len() == healthy;
            self.kubelet.wait_for(self.case.resource, &what, known);
            at.elapsed()
        };
        for _ in 0..PLUGS {
            last.unplug(&self.case.machine);
            gone.push(until(self.case.ids - 1));
            last.plug(&self.case.machine);
            back.push(until(self.case.ids));
        }
        (Some(p50_and_p99(gone).0), Some(p50_and_p99(back).0))
    }
}

/// CPU time in ms, and how often one of its threads went to sleep, of each.
fn idle(all: &[Running]) -> (Vec<f64>, Vec<f64>) {
    // threads that were needed go
    thread::sleep(Duration::from_secs(4));
    let used = |it: &Running| (it.daemon.ticks(), it.daemon.sleeps());
    let before: Vec<_> = all.iter().map(used).collect();
    thread::sleep(IDLE);
    // SAFETY: it asks for a constant of the system.
    let second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).expect("ticks");
    let pairs = all.iter().map(used).zip(before);
    let spent = pairs.map(|(after, before)| {
        let ticks = (after.0 - before.0) * 1000 / second;
        (count(ticks), count(after.1.saturating_sub(before.1)))
    });
    spent.unzip()
}

/// `2 CPUs, load 0.36, Linux 6.1.0`
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

/// In ms.
pub(super) fn p50_and_p99(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at =
        |percent: usize| milliseconds(times[(times.len() * percent / 100).min(times.len() - 1)]);
    (at(50), at(99))
}

fn count(number: impl TryInto<u32>) -> f64 {
    f64::from(number.try_into().unwrap_or(u32::MAX))
}
