// SPDX-License-Identifier: Apache-2.0
//! A control plane outside of the lab's machines. Its nodes run in the machines. The program `cluster-lab` runs it.

use super::{
    ControlPlane, NEVER_LOST,
    messages::{Answer, Change, PORT, Question, Request},
    nodes::{FIRST, Member},
    remote::PKI,
    repository,
    site::Site,
};
use crate::{
    container_runtime::{Engine, TOOLS},
    netns::check,
    wait,
};
use nix::{
    sched::{CloneFlags, setns},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::{
        Arc, PoisonError, RwLock,
        mpsc::{self, Sender},
    },
    thread,
};
use tempfile::TempDir;

/// Image that examples name, and the image that replaces it: no registry is used.
const IMAGES: [&str; 2] = ["mellanox/centos_7_4_mofed_4_2_1_2_0_0_60", TOOLS];

/// Time without a report of kubelet after which a node counts as lost, in a cluster of two nodes. Its tests cut a
/// node's power. A minute is long enough for an emulated node.
const LOST: &str = "60s";

/// Messages to the thread that owns all processes of the control plane. The processes end with the thread.
enum Message {
    Request(Change, TcpStream),
    Ended(Member, ExitStatus),
}

#[derive(Default)]
struct Running {
    plane: Option<ControlPlane>,
    /// True if a test has used the control plane.
    is_used: bool,
    /// The machines of the nodes, by the nodes' numbers.
    machines: BTreeMap<usize, Machine>,
}

/// State of a node's machine.
#[derive(Debug, Eq, PartialEq)]
enum Machine {
    Runs(Pid),
    HasNoPower,
    Ended(ExitStatus),
}

/// Boots a machine for each of `members` by `integration/lab/vm ARGUMENTS`. The machine's command uses the control
/// plane by a [`super::RemoteControlPlane`]. Makes new keys and certificates for the nodes in `pki`. Returns the exit
/// status of the first node's command.
#[track_caller]
pub fn run(pki: &Path, members: &[Member], arguments: &[OsString]) -> ExitStatus {
    if pki.exists() {
        fs::remove_dir_all(pki).expect("the previous directory is removed");
    }
    fs::create_dir_all(pki).expect("a directory for keys");
    let site = Arc::new(Site::with_nodes(pki, members));
    let listener = listen(&site);
    let running = Arc::new(RwLock::new(Running::default()));
    let (sender, receiver) = mpsc::channel();
    for member in members {
        let mut vm = machine(&site, *member, members.len() > 1);
        let vm = vm.args(arguments).env(PKI, pki).spawn();
        let mut vm = vm.expect("the machine starts");
        let pid = Pid::from_raw(i32::try_from(vm.id()).expect("a pid"));
        write(&running)
            .machines
            .insert(member.number, Machine::Runs(pid));
        let (member, sender) = (*member, sender.clone());
        thread::spawn(move || {
            let status = vm.wait().expect("our own child");
            let _ = sender.send(Message::Ended(member, status));
        });
    }
    thread::spawn({
        let running = Arc::clone(&running);
        move || accept(&listener, &running, &sender)
    });
    // the control plane starts while the machines boot
    write(&running).plane = Some(start(&site, members));
    loop {
        match receiver.recv().expect("the machines end some time") {
            Message::Ended(FIRST, status) => {
                let mut running = write(&running);
                running.machines.remove(&FIRST.number);
                running.end_machines();
                // drops the control plane here, because the thread that accepts connections continues to run and keeps
                // `running`
                running.plane = None;
                return status;
            }
            Message::Ended(member, status) => write(&running).has_ended(member, status),
            Message::Request(change, stream) => {
                answer(&stream, || write(&running).changed(&site, members, change));
            }
        }
    }
}

/// Returns the command of `integration/lab/vm` for a node. The program ends with this thread.
fn machine(site: &Site, member: Member, has_fabric: bool) -> Command {
    let mut vm = site.netns().command("setpriv");
    vm.args(["--pdeathsig", "TERM"]);
    vm.arg(repository().join("integration/lab/vm"));
    vm.arg("--node").arg(member.number.to_string());
    vm.args(has_fabric.then_some("--fabric"));
    vm
}

fn write(running: &RwLock<Running>) -> std::sync::RwLockWriteGuard<'_, Running> {
    // a panic poisons the lock: the test that sent the request got an error as its answer
    running.write().unwrap_or_else(PoisonError::into_inner)
}

/// Listens in the control plane's network namespace.
#[track_caller]
fn listen(site: &Site) -> TcpListener {
    let netns = File::open(site.netns().path()).expect("a network namespace");
    let listener = thread::spawn(move || {
        setns(&netns, CloneFlags::CLONE_NEWNET).expect("root may enter it");
        TcpListener::bind((super::ADDRESS, PORT)).expect("a free port")
    });
    listener.join().expect("a listener")
}

fn accept(listener: &TcpListener, running: &Arc<RwLock<Running>>, sender: &Sender<Message>) {
    for stream in listener.incoming().flatten() {
        let (running, sender) = (Arc::clone(running), sender.clone());
        thread::spawn(move || match read(&stream) {
            Ok(Request::Question(question)) => {
                let running = running.read().unwrap_or_else(PoisonError::into_inner);
                answer(&stream, || answered(&running, question));
            }
            Ok(Request::Change(change)) => {
                let _ = sender.send(Message::Request(change, stream));
            }
            Err(error) => {
                eprintln!("the control plane's server received an invalid request: {error}")
            }
        });
    }
}

fn read(mut stream: &TcpStream) -> io::Result<Request> {
    stream.set_read_timeout(Some(wait::TIMEOUT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// Sends the result of `done`. If `done` panics, the answer makes the test fail that sent the request.
fn answer(mut stream: &TcpStream, done: impl FnOnce() -> Answer) {
    let answer = panic::catch_unwind(AssertUnwindSafe(done)).unwrap_or_else(|_| {
        let why = "the control plane's server panicked: see its message above";
        Answer::not_done(String::new(), why.to_owned())
    });
    let text = serde_json::to_string(&answer).expect("JSON");
    // an error is ignored, because the test may have ended
    let _ = stream.write_all(text.as_bytes());
    let _ = stream.shutdown(Shutdown::Both);
}

fn answered(running: &Running, question: Question) -> Answer {
    let plane = running.plane.as_ref().expect("a control plane runs");
    match question {
        Question::Shell(line) => plane.try_shell(&line).into(),
        Question::Api { method, path, body } => match plane.request(&method, &path, &body) {
            Ok((true, output)) => Answer::done(output),
            Ok((false, output)) => Answer::not_done(output, String::new()),
            Err(error) => Answer::not_done(String::new(), error.to_string()),
        },
        Question::LastErrors => Answer::done(plane.last_errors()),
    }
}

impl Running {
    fn changed(&mut self, site: &Arc<Site>, members: &[Member], change: Change) -> Answer {
        match change {
            Change::Fresh => {
                if self.is_used {
                    // dropped first: the next control plane uses the same ports
                    self.plane = None;
                    self.plane = Some(start(site, members));
                }
                self.is_used = true;
            }
            Change::AssertRuns(yet) => {
                self.plane().assert_runs(&yet);
                for (number, machine) in &self.machines {
                    let has_ended = matches!(machine, Machine::Ended(_));
                    assert!(!has_ended, "node {number}: {machine:?}, not yet: {yet}");
                }
            }
            Change::PowerOff(number) => {
                let before = self.machines.insert(number, Machine::HasNoPower);
                let Some(Machine::Runs(pid)) = before else {
                    panic!("node {number} does not run: {before:?}");
                };
                // the program kills its machine
                kill(pid, Signal::SIGTERM).expect("our own child");
            }
            Change::RestartApiServer(signal) => {
                let signal = Signal::try_from(signal).expect("a signal");
                self.plane().restart_api_server(signal);
            }
        }
        Answer::done(String::new())
    }

    fn plane(&mut self) -> &mut ControlPlane {
        self.plane.as_mut().expect("a control plane runs")
    }

    fn has_ended(&mut self, member: Member, status: ExitStatus) {
        let machine = self.machines.get_mut(&member.number).expect("a node");
        if *machine != Machine::HasNoPower {
            *machine = Machine::Ended(status);
        }
    }

    fn end_machines(&self) {
        for machine in self.machines.values() {
            if let Machine::Runs(pid) = machine {
                // an error is ignored, because the machine may have just ended
                let _ = kill(*pid, Signal::SIGTERM);
            }
        }
    }
}

#[track_caller]
fn start(site: &Arc<Site>, members: &[Member]) -> ControlPlane {
    let directory = TempDir::new().expect("a temporary directory");
    let desk = desk(directory.path());
    let timeout = if members.len() > 1 { LOST } else { NEVER_LOST };
    ControlPlane::start_at(Arc::clone(site), directory, desk, timeout)
}

/// Makes the operator's directory below `directory`, with a copy of the repository's `conf`. In the copy, the examples
/// name the lab's images, and the manifests the lab's runtime.
#[track_caller]
fn desk(directory: &Path) -> PathBuf {
    let desk = directory.join("desk");
    fs::create_dir(&desk).expect("a directory");
    let conf = repository().join("conf");
    check(Command::new("cp").arg("-r").arg(conf).arg(&desk));
    let [of_users, of_the_lab] = IMAGES;
    replace(&desk.join("conf/examples"), of_users, of_the_lab);
    if Engine::of_the_lab() == Engine::Crio {
        // the setting that docs/node.md describes
        let chain = "\"chain\": {";
        let runtime = format!("{chain} \"runtime\": \"crio\",");
        replace(&desk.join("conf/manifests"), chain, &runtime);
    }
    desk
}

/// Replaces text in the YAML files of a directory.
#[track_caller]
fn replace(directory: &Path, from: &str, to: &str) {
    let files = fs::read_dir(directory).expect("a directory");
    let files = files.map(|it| it.expect("a file").path());
    let mut changed = 0;
    for file in files.filter(|it| it.extension().is_some_and(|it| it == "yaml")) {
        let text = fs::read_to_string(&file).expect("a file");
        changed += text.matches(from).count();
        fs::write(&file, text.replace(from, to)).expect("a file");
    }
    assert!(changed > 0, "{directory:?} has no {from:?}");
}
