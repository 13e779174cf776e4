// SPDX-License-Identifier: Apache-2.0
//! NetworkManager, systemd-networkd and lldpd as processes. Each runs for one temporary namespace.
//!
//! A manager runs in separate mount and PID namespaces, so it disturbs neither other managers nor the machine's own
//! manager. Its files and its D-Bus are in memory, and all programs that it starts end with it. Its `/sys` is
//! read-only. From this, systemd-networkd and NetworkManager conclude that there is no udev to wait for
//! (`udev_available()` of systemd, `nmp_netns` and `use_udev` of NetworkManager).

use crate::{Netns, wait};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Path of Debian 12's systemd-networkd.
const NETWORKD: &str = "/lib/systemd/systemd-networkd";

const NETWORK_MANAGER: &str = "/usr/sbin/NetworkManager";

const LLDPD: &str = "/usr/sbin/lldpd";

/// A running network manager. Drop kills it. Its configuration of the namespace remains.
#[derive(Debug)]
pub struct Manager {
    child: Child,
    directory: TempDir,
}

impl Manager {
    /// Starts NetworkManager with `profiles`, which are pairs of a name and a keyfile's text. NetworkManager also
    /// manages virtual netdevs, because they model NICs in the tests.
    #[track_caller]
    pub fn network_manager(host: &Netns, profiles: &[(&str, &str)]) -> Self {
        Self::network_manager_of(host, ["interface-name:lo", "*"], profiles)
    }

    /// Starts NetworkManager like [`Self::network_manager`], for only the netdevs whose names match `pattern`.
    #[track_caller]
    pub fn network_manager_for(host: &Netns, pattern: &str, profiles: &[(&str, &str)]) -> Self {
        let others = format!("interface-name:*,except:interface-name:{pattern}");
        Self::network_manager_of(host, [&others, pattern], profiles)
    }

    #[track_caller]
    fn network_manager_of(
        host: &Netns,
        [unmanaged, managed]: [&str; 2],
        profiles: &[(&str, &str)],
    ) -> Self {
        let configuration = format!(
            "\
            [main]\nplugins=keyfile\nauth-polkit=false\nno-auto-default=*\ndns=none\n\
            rc-manager=unmanaged\n[keyfile]\nunmanaged-devices={unmanaged}\n\
            [device]\nmatch-device=interface-name:{managed}\nmanaged=1\n"
        );
        let mut files = vec![("NetworkManager.conf".to_owned(), &*configuration)];
        for (name, text) in profiles {
            files.push((format!("system-connections/{name}.nmconnection"), *text));
        }
        let script = format!(
            "mount -t tmpfs none /var/lib/NetworkManager && mkdir -p /run/dbus && \
             dbus-daemon --system --fork --nopidfile && {NETWORK_MANAGER} --debug & wait"
        );
        let directory = ["/etc/NetworkManager", NETWORK_MANAGER, "network-manager"];
        Self::start(host, directory, &files, &script)
    }

    /// Starts systemd-networkd with `files`, which are pairs of a name (such as `eth1.network`) and a text.
    #[track_caller]
    pub fn networkd(host: &Netns, files: &[(&str, &str)]) -> Self {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), *text))
            .collect();
        let directory = ["/etc/systemd/network", NETWORKD, "systemd"];
        // does not start networkd as process 1, which systemd's programs would take for systemd itself
        Self::start(host, directory, &files, &format!("{NETWORKD} & wait"))
    }

    /// Starts lldpd. Each second it sends a frame on every netdev of `switch`, as the system `name` and with a TTL of
    /// `hold` seconds. After `run("pkill lldpd")` it announces that it stops.
    #[track_caller]
    pub fn lldpd(switch: &Netns, name: &str, hold: u8) -> Self {
        let text = format!(
            "configure system hostname {name}\nconfigure lldp tx-interval 1\nconfigure lldp tx-hold {hold}\n\
             configure lldp portidsubtype ifname\n"
        );
        let files = [("test.conf".to_owned(), &*text)];
        let script = format!("mkdir -p /run/lldpd && {LLDPD} -d -I '*' & wait");
        Self::start(switch, ["/etc/lldpd.d", LLDPD, "lldpd"], &files, &script)
    }

    #[track_caller]
    fn start(
        host: &Netns,
        [place, program, package]: [&str; 3],
        files: &[(String, &str)],
        script: &str,
    ) -> Self {
        assert!(
            Path::new(program).exists(),
            "there is no {program}: apt-get install {package}"
        );
        let directory = TempDir::new().expect("a temporary directory");
        for (name, text) in files {
            let path = directory.path().join("files").join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("room for a file");
        }
        let log = fs::File::create(directory.path().join("log")).expect("a log");
        let script = format!(
            "mount --make-rprivate / && mount -o remount,ro,bind /sys && \
             mount -t tmpfs -o mode=755 none /run && mkdir -p {place} && \
             mount -t tmpfs -o mode=755 none {place} && cp -r {}/. {place} && \
             chmod -R go=rX {place} && chmod -f 600 {place}/system-connections/*; {script}",
            directory.path().join("files").display()
        );
        let child = host
            .command("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("another descriptor"))
            .stderr(log)
            .spawn()
            .expect("unshare starts");
        Self { child, directory }
    }

    /// Runs a command line such as `nmcli device`, split at white space, in the manager's namespaces. Returns its
    /// standard output.
    pub fn run(&self, line: &str) -> String {
        let Some(inside) = self.first_process() else {
            return String::new();
        };
        let mut command = Command::new("nsenter");
        command.args(["--target", &inside, "--mount", "--net", "--pid"]);
        let output = command.args(line.split_whitespace()).output();
        let output = output.expect("nsenter starts");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the manager's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Waits until `done` returns true. At the time limit, panics with the manager's log.
    #[track_caller]
    pub fn until(&self, what: &str, done: impl FnMut() -> bool) {
        assert!(
            wait::within(wait::TIMEOUT, done),
            "not within {:?}: {what}\n{}",
            wait::TIMEOUT,
            self.log()
        );
    }

    /// Kills the manager. Its configuration of the namespace remains.
    pub fn stop(self) {}

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Returns the PID, in the test's PID namespace, of the first process in the manager's PID namespace.
    fn first_process(&self) -> Option<String> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next().map(str::to_owned)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let inside = self.first_process();
        let _ = self.child.kill();
        let _ = self.child.wait();
        // the processes in the namespace end a little after `unshare`
        if let Some(pid) = inside {
            let gone = || !Path::new(&format!("/proc/{pid}")).exists();
            wait::within(wait::TIMEOUT, gone);
        }
    }
}
