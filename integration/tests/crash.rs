// SPDX-License-Identifier: Apache-2.0
//! Kills each program, and injects errors into its system calls, at one in ten points, or with `--full` at all points.
//! `scripts/crash` runs the same stories manually. docs/dev/fault-injection.md describes the stories.

use integration::{
    Daemon, Invocation, Machine, Netns,
    crash::{
        End, Ended, Extent, Story, Tally, at, at_syncs,
        attachment::{Attachments, Mode, OfVerb, Verb},
        daemon::Writes,
        lease::Leases,
        program::{self, Programs},
        sweep,
        twice::{error_and_kill, these_two_errors, two_errors, two_kills},
    },
    daemon::rdma_device_plugin,
    extent,
    machine::NIC,
    plugin::rdma_cni,
    tracer::{self, Fault, Report, point::Point},
    wait,
};
use nix::{libc, sys::signal::Signal};
use std::{fs, os::unix::process::ExitStatusExt, path::PathBuf};
use tempfile::TempDir;

fn injector() -> PathBuf {
    env!("CARGO_BIN_EXE_fault-injector").into()
}

/// Asserts that nearly all attempted faults occurred, and that nothing was left behind.
#[track_caller]
fn leaves_nothing(tally: &Tally) {
    tally.assert_nothing_left(10);
}

/// Injects the faults `points`. Asserts that each of them occurred, and that nothing was left behind.
#[track_caller]
fn each_leaves_nothing(story: &mut dyn Story, points: &[[&str; 2]]) {
    let tally = at(story, points);
    assert_eq!(tally.unmet, 0, "{tally}");
    leaves_nothing(&tally);
}

#[track_caller]
fn leaves_nothing_at_any_point(story: &mut dyn Story, first: usize) {
    leaves_nothing(&sweep(story, Extent::of_test(first)));
}

#[track_caller]
fn of_verb(mode: Mode, name: &'static str, verb: Verb, first: usize) {
    let of = &mut Attachments::of_node(mode, [rdma_cni(), injector()]);
    leaves_nothing_at_any_point(&mut OfVerb { name, verb, of }, first);
}

/// Injects faults before, after, and instead of a call of a program whose calls are known.
#[test]
fn a_fault_is_where_it_should_be() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    let netns = Netns::own();
    let run = |fault: Option<Fault>| {
        let _ = fs::remove_file(at("new"));
        fs::write(at("old"), "").expect("a file");
        let call = Invocation::new(&netns, "/bin/mv".as_ref())
            .argument(at("old").to_str().expect("UTF-8"))
            .argument(at("new").to_str().expect("UTF-8"));
        let outcome = tracer::traced(call, &injector(), fault, &at("report")).run();
        let report = tracer::report(&at("report"));
        (End::of(&outcome), report, outcome.stderr)
    };
    let (end, report, _) = run(None);
    assert_eq!(end, End::Done(String::new()));
    assert!(!at("old").exists() && at("new").exists());
    let changes: Vec<&Point> = report.changes().collect();
    let [rename] = changes[..] else {
        panic!("not one change: {changes:?}");
    };
    assert!(rename.call.starts_with("rename"), "{rename:?}");
    assert!(rename.errors.contains(&libc::ENOSPC), "{rename:?}");

    assert_eq!(run(Some(Fault::Kill(1))).0, End::Killed);
    assert!(at("old").exists() && !at("new").exists());
    assert_eq!(run(Some(Fault::KillAfter(1))).0, End::Killed);
    assert!(!at("old").exists() && at("new").exists());
    let can_fail = |it: &&Point| it.errors.contains(&libc::ENOSPC);
    let mut candidates = report.points.iter().filter(can_fail);
    let number = candidates.position(|it| it == rename);
    let number = number.expect("the rename is a point") + 1;
    let (end, report, errors) = run(Some(Fault::Fail(number, libc::ENOSPC)));
    assert!(matches!(end, End::Refused(..)), "{end:?}");
    assert!(errors.contains("No space left on device"), "{errors}");
    assert_eq!(report.hit.as_ref(), Some(rename));
    assert!(at("old").exists() && !at("new").exists());
    let (end, report, _) = run(Some(Fault::Kill(2)));
    assert_eq!((end, report.hit), (End::Done(String::new()), None));
}

/// The injector attaches to a daemon with several threads, releases it, and attaches again. Then it kills the daemon
/// before a rename.
#[test]
fn a_change_by_a_running_daemon_is_a_point() {
    let machine = Machine::with(&[NIC]);
    let configure = |name: &str| {
        machine.configure(&format!(
            r#"{{"resources":[{{"name":"rdma/{name}","kind":"shared","devices":[{{"rdma":"mlx5_0"}}]}}]}}"#
        ));
    };
    let publishes = |name: &str| {
        let published = || fs::read_to_string(machine.path("state/resources.json"));
        wait::until(name, || published().is_ok_and(|it| it.contains(name)));
    };
    configure("first");
    let mut command = machine.command(&rdma_device_plugin());
    let daemon = Daemon::start(command.args(["--metrics-address", "127.0.0.1:0"]));
    publishes("first");
    assert!(daemon.threads() > 1);
    let follows = |name: &str| {
        configure(name);
        daemon.signal(Signal::SIGHUP);
        publishes(name);
    };
    let changes = tracer::changes(daemon.pid(), &injector(), || follows("traced"));
    assert!(changes["rename"] > 0 && changes["fsync"] > 0, "{changes:?}");
    follows("released");
    configure("killed");
    let (pid, kill) = (daemon.pid(), Fault::KillBefore("rename", 1));
    let (status, _) = tracer::killed(pid, &injector(), kill, || daemon.end(Signal::SIGHUP));
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
    publishes("released");
}

/// coreutils' `sync` of a file, with one of its options.
struct Sync {
    name: &'static str,
    directory: TempDir,
    netns: Netns,
}

impl Story for Sync {
    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&mut self, fault: Option<Fault>) -> (End, Report) {
        let at = |name: &str| self.directory.path().join(name);
        fs::write(at("file"), "").expect("a file");
        let mut call = Invocation::new(&self.netns, "/bin/sync".as_ref());
        if let Some((_, way)) = self.name.split_once(' ') {
            call = call.argument(way);
        }
        call = call.argument(at("file").to_str().expect("UTF-8"));
        let outcome = tracer::traced(call, &injector(), fault, &at("report")).run();
        (End::of(&outcome), tracer::report(&at("report")))
    }

    fn put_right(&mut self, _: &End, _: usize) -> Vec<String> {
        vec![]
    }
}

/// Power is lost before the sync, or after it, for each system call that syncs.
#[test]
fn every_way_to_sync_is_a_point() {
    for name in ["sync", "sync --data", "sync --file-system"] {
        let story = &mut Sync {
            name,
            // a memory file system: nothing waits for a disk
            directory: TempDir::new_in("/dev/shm").expect("a directory"),
            netns: Netns::own(),
        };
        let tally = at_syncs(story, "at its syncs");
        // two points: before the sync, and after the last change, which is the sync
        assert_eq!((tally.killed, tally.unmet), (2, 0), "{tally}");
    }
}

/// The points include the daemon's registration and its answers, on connections that it opens and that it accepts.
#[test]
fn daemon_log_lines_are_kill_points() {
    let (end, report) = Writes::new([rdma_device_plugin(), injector()]).run(None);
    assert_eq!(end, End::Done(String::new()));
    for call in ["connect", "accept4", "fcntl", "inotify_add_watch", "ioctl"] {
        let is_it = |it: &Point| it.call == call && !it.errors.is_empty();
        assert!(report.points.iter().any(is_it), "no {call} is a point");
    }
    let sends = report.points.iter().filter(|it| it.sends).count();
    // two registrations, and the answers to each
    assert!(sends >= 4, "{sends} times something is sent");
}

#[test]
fn add_of_shares() {
    of_verb(Mode::Share, "share ADD", Verb::Add, 0);
}

#[test]
fn del_of_shares() {
    of_verb(Mode::Share, "share DEL", Verb::Del, 1);
}

#[test]
fn gc_of_shares() {
    of_verb(Mode::Share, "share GC", Verb::Gc, 2);
}

#[test]
fn add_of_moves() {
    of_verb(Mode::Move, "move ADD", Verb::Add, 3);
}

#[test]
fn del_of_moves() {
    of_verb(Mode::Move, "move DEL", Verb::Del, 4);
}

#[test]
fn gc_of_moves() {
    of_verb(Mode::Move, "move GC", Verb::Gc, 5);
}

/// Points of `rdma-cni` that once left something behind: a device, a record, a lock, half a file.
#[test]
fn histories_that_left_something() {
    let of = &mut Attachments::of_node(Mode::Move, [rdma_cni(), injector()]);
    let (name, verb) = ("move ADD", Verb::Add);
    let points = [
        // rdma-cni could not read the namespace's cookie and used 0: DEL took the pod for another pod
        ["EMFILE of socket 1 ", ""],
        ["EINTR of flock 1 ", "a@eth0.lock)"],
        ["EMFILE of open", "a@eth0.json)"],
        ["ENOSPC of fsync", "attachments/net)"],
        ["killed before write", ".rails.json.new)"],
        ["killed before renameat", ".rails.json.new "],
        ["ENOSPC of write", ".rails.json.new)"],
        ["ENOSPC of renameat", ".rails.json.new "],
    ];
    each_leaves_nothing(&mut OfVerb { name, verb, of }, &points);
    for (name, verb) in [("move DEL", Verb::Del), ("move GC", Verb::Gc)] {
        let points = [
            ["EIO of read", "rails/net/a/rails.json)"],
            ["EMFILE of openat", "(.lock)"],
            ["EINTR of flock", "state/rails/.lock)"],
            // this error left an empty file, which nothing removed later
            ["EIO of unlinkat", "(a)"],
            ["EIO of unlink", "a@eth0.lock)"],
        ];
        each_leaves_nothing(&mut OfVerb { name, verb, of }, &points);
    }
    // this error at the start of the thread that passes the input to IPAM once caused a panic
    let of = &mut Attachments::of_node(Mode::ShareByWrapper, [rdma_cni(), injector()]);
    let (name, verb) = ("wrapped ADD", Verb::Add);
    let points = [["ENOMEM of clone", "(a thread)"]];
    each_leaves_nothing(&mut OfVerb { name, verb, of }, &points);
}

/// Points of the other programs that once left something behind.
#[test]
fn histories_of_others_that_left_something() {
    let ipam = || [rdma_cni().with_file_name("rdma-ipam"), injector()];
    let points = [
        ["killed before write", ".rdma-ipam.secret.new)"],
        ["ENOSPC of write", ".rdma-ipam.secret.new)"],
        ["killed before rename", ".rdma-ipam.secret.new "],
        ["ENOSPC of rename", ".rdma-ipam.secret.new "],
        // the temporary file of a lease
        ["killed before write", "/a@eth0."],
        ["ENOSPC of write", "/a@eth0."],
        ["ENOSPC of fsync", "/a@eth0."],
        ["killed before linkat", "/a@eth0."],
        ["ENOSPC of linkat", "/a@eth0."],
        ["EIO of unlink", "/a@eth0."],
    ];
    let story = &mut Leases::new("rdma-ipam ADD", Verb::Add, ipam());
    each_leaves_nothing(story, &points);
    let programs = || [rdma_device_plugin(), injector()];
    // the failed calls include the query of the list's modification time
    let points = [["EIO of stat", "10-flannel.conflist)"]];
    let story = &mut Programs::new(program::Verb::Install, programs());
    each_leaves_nothing(story, &points);
    // the file whose creation makes the runtime read its lists again
    let points = [["EIO of ", ".rdma-cni-changes)"]];
    let story = Programs::new(program::Verb::Install, programs());
    each_leaves_nothing(&mut story.in_directory(), &points);
    let points = [
        ["EIO of unlink", "install.lock)"],
        ["EIO of rmdir", "/state)"],
    ];
    let story = &mut Programs::new(program::Verb::Uninstall, programs());
    each_leaves_nothing(story, &points);
    // once, the record still named a removed file. Now a file that cannot be read or removed counts as present.
    let points = [
        ["EIO of ", "net.d/cbr0)"],
        ["ENOSPC of fsync", "state)"],
        ["killed before write", "install.json.new)"],
    ];
    let story = Programs::new(program::Verb::Uninstall, programs());
    each_leaves_nothing(&mut story.in_directory(), &points);
    let points = [["killed before unlink", "a@eth0.lock)"]];
    each_leaves_nothing(&mut Ended::new(programs()), &points);
    let points = [
        ["killed before rename", "daemons/."],
        ["killed before rename", ".rdma-cni-new "],
        // the list has the entry, and the copy next to it is the list before the change
        ["killed before unlink", ".rdma-cni-new)"],
    ];
    // the daemon's threads make these calls in a different order in each run
    at(&mut Writes::new(programs()), &points).assert_nothing_left(2);
}

/// `rdma-cni` restores everything after two kills in one story. There are about ten thousand pairs of kills: the test
/// tries a sample of them.
#[test]
fn two_kills_in_one_story() {
    let ends = [Verb::Del, Verb::Gc];
    let seconds = [Verb::Del, Verb::Gc, Verb::Add];
    for (mode, name, of_ends) in [
        (Mode::Share, "share, twice", "share ends, twice"),
        (Mode::Move, "move, twice", "move ends, twice"),
    ] {
        let of = &mut Attachments::of_node(mode, [rdma_cni(), injector()]);
        let extent = Extent::spread(5, extent::of(16, 400));
        leaves_nothing(&two_kills(name, of, [&[Verb::Add], &seconds], extent));
        let extent = Extent::spread(3, extent::of(8, 100));
        leaves_nothing(&two_kills(of_ends, of, [&ends, &ends], extent));
    }
}

/// Injects an error, and then kills the program before one of the changes with which it undoes its work.
#[test]
fn an_error_and_a_kill_in_one_story() {
    for (mode, verb, name, usual) in [
        (Mode::Share, Verb::Add, "share ADD, both", 6),
        (Mode::Share, Verb::Del, "share DEL, both", 2),
        (Mode::Share, Verb::Gc, "share GC, both", 2),
        (Mode::Move, Verb::Add, "move ADD, both", 6),
        (Mode::Move, Verb::Del, "move DEL, both", 2),
        (Mode::Move, Verb::Gc, "move GC, both", 2),
    ] {
        let of = &mut Attachments::of_node(mode, [rdma_cni(), injector()]);
        let extent = Extent::spread(0, extent::of(usual, 40));
        leaves_nothing(&error_and_kill(name, of, verb, extent));
    }
}

/// ADD fails before it changes devices, and cannot remove its record.
#[test]
fn a_record_that_cannot_be_taken_away_is_reported() {
    let of = &mut Attachments::of_node(Mode::Move, [rdma_cni(), injector()]);
    let unsynced = ["EIO of fsync", "attachments/net)"];
    let end = these_two_errors(of, unsynced, ["EIO of unlink", "a@eth0.json)"]);
    let words = "; nothing was changed; in addition, the attachment's record could not be removed and stays until \
                 DEL: cannot remove ";
    assert!(
        matches!(&end, End::Refused(105, it) if it.contains(words)),
        "{end:?}"
    );
}

/// The second error occurs while ADD undoes its changes. ADD lists the changes that it cannot undo.
#[test]
fn two_errors_in_one_story() {
    for (mode, name) in [
        (Mode::Share, "share ADD, two errors"),
        (Mode::Move, "move ADD, two errors"),
    ] {
        let of = &mut Attachments::of_node(mode, [rdma_cni(), injector()]);
        leaves_nothing(&two_errors(name, of, Extent::spread(0, extent::of(8, 150))));
    }
}

/// `rdma-cni` starts an IPAM plugin that is not of its own build as a separate program, once for each rail.
#[test]
fn shares_by_a_wrapper_of_rdma_ipam() {
    let of = &mut Attachments::of_node(Mode::ShareByWrapper, [rdma_cni(), injector()]);
    for (first, (name, verb)) in [
        ("wrapped ADD", Verb::Add),
        ("wrapped DEL", Verb::Del),
        ("wrapped GC", Verb::Gc),
    ]
    .into_iter()
    .enumerate()
    {
        let extent = Extent::of_variant(first + 6);
        leaves_nothing(&sweep(&mut OfVerb { name, verb, of }, extent));
    }
}

#[test]
fn leases_by_themselves() {
    let ipam = || rdma_cni().with_file_name("rdma-ipam");
    for (first, (name, verb)) in [
        ("rdma-ipam ADD", Verb::Add),
        ("rdma-ipam DEL", Verb::Del),
        ("rdma-ipam GC", Verb::Gc),
    ]
    .into_iter()
    .enumerate()
    {
        leaves_nothing_at_any_point(&mut Leases::new(name, verb, [ipam(), injector()]), first);
    }
}

#[test]
fn install_and_uninstall() {
    for (first, verb) in [program::Verb::Install, program::Verb::Uninstall]
        .into_iter()
        .enumerate()
    {
        leaves_nothing_at_any_point(
            &mut Programs::new(verb, [rdma_device_plugin(), injector()]),
            first,
        );
    }
}

/// Install moves the entry from the list to the network's own directory, and uninstall removes it there.
#[test]
fn install_and_uninstall_in_a_directory() {
    for (first, verb) in [program::Verb::Install, program::Verb::Uninstall]
        .into_iter()
        .enumerate()
    {
        let story = Programs::new(verb, [rdma_device_plugin(), injector()]);
        leaves_nothing(&sweep(&mut story.in_directory(), Extent::of_slow(first)));
    }
}

/// Uninstall starts `rdma-cni`, which restores the devices that the pod had.
#[test]
fn uninstall_after_a_pod_has_ended() {
    let story = &mut Ended::new([rdma_device_plugin(), injector()]);
    leaves_nothing(&sweep(story, Extent::of_slow(1)));
}

#[test]
fn daemon_writes() {
    let story = &mut Writes::new([rdma_device_plugin(), injector()]);
    leaves_nothing(&sweep(story, Extent::of_slow(0)));
}
