// SPDX-License-Identifier: Apache-2.0
//! Temporary network namespaces, and commands that run inside them.
//!
//! This module makes a namespace as `ip netns add` does: as a bind mount under `/run/netns`. This directory is a shared
//! mount, so the removal of the namespace reaches every mount namespace. A command runs under `ip netns exec`, in a
//! separate mount namespace where `/sys` shows the network namespace. Names contain the process id, so test processes
//! do not conflict.

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};
use tempfile::NamedTempFile;

/// A network namespace. Drop removes it if this program made it.
#[derive(Debug)]
pub struct Netns {
    name: Option<String>,
    path: PathBuf,
    is_ours: bool,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

const FOLDER: &str = "/run/netns";
const NONE: Option<&str> = None;

impl Netns {
    /// Makes an empty namespace. `label` becomes a part of its name.
    #[track_caller]
    pub fn new(label: &str) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "tests with namespaces need root: run them as root"
        );
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rdma-{}-{count}-{label}", std::process::id());
        let path = Path::new(FOLDER).join(&name);
        make(&path).unwrap_or_else(|error| panic!("cannot make {path:?}: {error}"));
        Self {
            name: Some(name),
            path,
            is_ours: true,
        }
    }

    /// Returns an existing namespace by its path in `/run/netns`.
    #[track_caller]
    pub fn existing(path: &Path) -> Self {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.unwrap_or_else(|| panic!("{path:?} names no namespace"));
        Self {
            name: Some(name.to_owned()),
            path: path.to_owned(),
            is_ours: false,
        }
    }

    /// Returns the namespace in which the test runs. In the lab, this is the host, which has the NICs.
    pub fn own() -> Self {
        Self {
            name: None,
            path: PathBuf::from("/proc/self/ns/net"),
            is_ours: false,
        }
    }

    /// Returns the path for `CNI_NETNS`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the name under `/run/netns`. Empty for the test's own namespace.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or("")
    }

    /// Returns the command of `program` inside the namespace.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        match &self.name {
            None => Command::new(program),
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(program);
                command
            }
        }
    }

    /// Runs a command line, split at white space, inside the namespace. It must succeed. Returns its output.
    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let program = words.next().expect("a command line has a first word");
        check(self.command(program).args(words))
    }

    /// Runs `ip LINE` on the namespace, which must succeed.
    #[track_caller]
    pub fn ip(&self, line: &str) -> String {
        check(self.ip_command().args(line.split_whitespace()))
    }

    /// Runs `ip` once for all `lines`, which must succeed. This takes about the time of one line.
    #[track_caller]
    pub fn ip_batch(&self, lines: &[String]) {
        let file = file_of(&lines.join("\n"));
        check(self.ip_command().arg("-batch").arg(file.path()));
    }

    /// Runs `ip` once for all `lines`, whether they succeed or not.
    pub fn ip_batch_of_attempts(&self, lines: &[String]) {
        let file = file_of(&lines.join("\n"));
        output(
            self.ip_command()
                .args(["-force", "-batch"])
                .arg(file.path()),
        );
    }

    /// Runs `rdma` once for all `lines`, which must succeed.
    #[track_caller]
    pub fn rdma_batch(&self, lines: &[String]) {
        let file = file_of(&lines.join("\n"));
        check(self.command("rdma").arg("-b").arg(file.path()));
    }

    /// Returns true if `ip LINE` succeeds.
    pub fn ip_succeeds(&self, line: &str) -> bool {
        output(self.ip_command().args(line.split_whitespace()))
            .status
            .success()
    }

    /// Returns the output of `ip -j -d LINE`. Empty output counts as an empty list.
    #[track_caller]
    pub fn show(&self, line: &str) -> Vec<Value> {
        let text = self.ip(&format!("-j -d {line}"));
        parse_list(&text)
    }

    /// Runs one `ip -j -d -FAMILY` for all `lines`. Returns a list for each line.
    #[track_caller]
    pub fn show_each<const N: usize>(&self, family: u8, lines: [&str; N]) -> [Vec<Value>; N] {
        let file = file_of(&lines.join("\n"));
        let mut command = self.ip_command();
        command.args(["-j", "-d", &format!("-{family}"), "-batch"]);
        let text = check(command.arg(file.path()));
        let lists: Vec<Vec<Value>> = text.lines().map(parse_list).collect();
        lists
            .try_into()
            .unwrap_or_else(|_| panic!("ip printed no list for each of {lines:?}: {text}"))
    }

    /// Returns the link called `name`, as `ip -j -d address show` shows it.
    #[track_caller]
    pub fn link(&self, name: &str) -> Option<Value> {
        self.show("address show")
            .into_iter()
            .find(|link| link["ifname"] == name)
    }

    /// Returns true if the namespace has a link called `name`.
    #[track_caller]
    pub fn has_link(&self, name: &str) -> bool {
        self.counters(name).is_some()
    }

    /// Returns the number of packets that `link` has received.
    #[track_caller]
    pub fn rx_packets(&self, link: &str) -> u64 {
        self.counter(link, 1)
    }

    /// Returns the number of bytes that `link` has sent, including packets of soft-RoCE.
    #[track_caller]
    pub fn tx_bytes(&self, link: &str) -> u64 {
        self.counter(link, 8)
    }

    #[track_caller]
    fn counter(&self, link: &str, column: usize) -> u64 {
        let counters = self.counters(link);
        let counters = counters.unwrap_or_else(|| panic!("no link {link} in {self:?}"));
        let count = counters.split_whitespace().nth(column);
        count.and_then(|it| it.parse().ok()).expect("a count")
    }

    /// Returns true if a TCP socket inside the namespace listens on `port`, according to `/proc/net/tcp` and
    /// `/proc/net/tcp6`.
    #[track_caller]
    pub(crate) fn listens(&self, port: u16) -> bool {
        const LISTEN: &str = "0A"; // TCP_LISTEN, include/net/tcp_states.h
        let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        let tables = self.inside(|| ["tcp", "tcp6"].map(read));
        tables.into_iter().flatten().any(|table| {
            table.lines().any(|line| {
                let mut fields = line.split_whitespace().skip(1);
                let is_port = fields
                    .next()
                    .is_some_and(|it| it.ends_with(&format!(":{port:04X}")));
                is_port && fields.nth(1) == Some(LISTEN)
            })
        })
    }

    /// Returns the counters of the link called `name` in `/proc/net/dev`.
    #[track_caller]
    fn counters(&self, name: &str) -> Option<String> {
        let table = self.inside(|| fs::read_to_string("/proc/thread-self/net/dev"));
        let table = table.expect("a table of links");
        let of = |line: &str| {
            let counters = line.trim_start().strip_prefix(name)?.strip_prefix(':')?;
            Some(counters.to_owned())
        };
        table.lines().find_map(of)
    }

    /// Returns the link's addresses, such as `10.0.0.1/24`, without link-local addresses.
    #[track_caller]
    pub fn addresses(&self, link: &str) -> Vec<String> {
        let link = self
            .link(link)
            .unwrap_or_else(|| panic!("no link {link} in {self:?}"));
        link["addr_info"]
            .as_array()
            .expect("ip shows addr_info")
            .iter()
            .filter(|address| address["scope"] != "link")
            .map(|a| format!("{}/{}", a["local"].as_str().unwrap_or("?"), a["prefixlen"]))
            .collect()
    }

    /// Returns the value of `/proc/sys/net/KEY`.
    #[track_caller]
    pub fn sysctl(&self, key: &str) -> String {
        let path = format!("/proc/sys/net/{key}");
        let value = self.inside(|| fs::read_to_string(&path));
        let value = value.unwrap_or_else(|error| panic!("{path}: {error}"));
        value.trim().to_owned()
    }

    /// Writes `/proc/sys/net/KEY`.
    #[track_caller]
    pub fn set_sysctl(&self, key: &str, value: &str) {
        let path = format!("/proc/sys/net/{key}");
        let written = self.inside(|| fs::write(&path, value));
        written.unwrap_or_else(|error| panic!("{path} = {value}: {error}"));
    }

    /// Runs `work` on a thread inside the namespace, without starting a program. Returns its result.
    #[track_caller]
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let netns = rdma_netns::netns::Netns::open(&self.path).expect("a namespace");
        netns.run(work).expect("a thread")
    }

    /// Ends the namespace before this value is dropped, as on a node where a pod's sandbox has died. The
    /// kernel destroys the namespace's objects a little later.
    #[track_caller]
    pub fn die(&self) {
        assert!(self.name.is_some(), "the test's own namespace cannot end");
        remove(&self.path).unwrap_or_else(|error| panic!("cannot remove {self:?}: {error}"));
    }

    fn ip_command(&self) -> Command {
        let mut command = Command::new("ip");
        if let Some(name) = &self.name {
            command.args(["-n", name]);
        }
        command
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if self.is_ours {
            // an error is ignored, because an ended namespace has no path
            let _ = remove(&self.path);
        }
    }
}

/// Makes a namespace at `path` as `ip netns add` does, without starting a program.
fn make(path: &Path) -> io::Result<()> {
    static IS_SHARED: Mutex<bool> = Mutex::new(false);
    let mut is_shared = IS_SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_shared {
        share_folder()?;
        *is_shared = true;
    }
    drop(is_shared);
    File::create_new(path)?;
    let made = thread::scope(|scope| {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let own = Some("/proc/thread-self/ns/net");
            mount(own, path, NONE, MsFlags::MS_BIND, NONE)
        };
        scope.spawn(inside).join().expect("no panic")
    });
    Ok(made?)
}

/// Makes `/run/netns` a shared mount. Then the removal of a namespace reaches every mount namespace.
fn share_folder() -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    let share = || {
        mount(
            NONE,
            FOLDER,
            NONE,
            MsFlags::MS_SHARED | MsFlags::MS_REC,
            NONE,
        )
    };
    if share() == Err(Errno::EINVAL) {
        // the directory is not a mount yet
        mount(
            Some(FOLDER),
            FOLDER,
            NONE,
            MsFlags::MS_BIND | MsFlags::MS_REC,
            NONE,
        )?;
        share()?;
    }
    Ok(())
}

/// Ends the namespace at `path` as `ip netns del` does.
fn remove(path: &Path) -> io::Result<()> {
    // an error is ignored: the removal of the file then fails too
    let _ = umount2(path, MntFlags::MNT_DETACH);
    fs::remove_file(path)
}

/// Parses a JSON list of iproute2. Empty output is an empty list. Omits empty objects, which `ip` prints in
/// place of filtered objects.
#[track_caller]
pub(crate) fn parse_list(text: &str) -> Vec<Value> {
    if text.trim().is_empty() {
        return vec![];
    }
    let list: Vec<Value> = serde_json::from_str(text)
        .unwrap_or_else(|error| panic!("iproute2 printed no JSON list ({error}): {text}"));
    list.into_iter()
        .filter(|item| item.as_object().is_none_or(|o| !o.is_empty()))
        .collect()
}

/// Makes a file with lines for a program.
#[track_caller]
fn file_of(lines: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(lines.as_bytes())
        .expect("room for the lines");
    file
}

fn output(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"))
}

/// Runs a command for preparation or observation, which must succeed. Returns its output.
#[track_caller]
pub(crate) fn check(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?} failed ({}): {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8(output.stdout).expect("iproute2 prints UTF-8")
}
