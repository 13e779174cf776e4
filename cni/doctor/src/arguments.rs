// SPDX-License-Identifier: Apache-2.0
//! Command line of `doctor`.

use clap::{Args, Subcommand};
pub(super) use network_conf::STATE_DIR;
use std::path::{Path, PathBuf};

/// Options of `rdma-device-plugin doctor`.
#[derive(Args, Clone, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    after_help = "Exit code: 0: no error; 1: an error (with --strict, also a warning); 2: wrong usage, or no error and \
                  something could not be observed."
)]
pub struct Arguments {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    /// Prints the findings as JSON
    #[arg(long, conflicts_with = "facts")]
    pub(super) json: bool,
    /// Prints all observations as JSON, for the report of a defect
    #[arg(long)]
    pub(super) facts: bool,
    /// Counts warnings as errors
    #[arg(long)]
    pub(super) strict: bool,
    /// Directory at which this container has the host's file system mounted
    #[arg(long, value_name = "DIRECTORY", default_value = "/", value_parser = absolute)]
    root: PathBuf,
    /// Directory of the network configurations; default: the directory of the last install, else /etc/cni/net.d
    #[arg(long, value_name = "DIRECTORY", value_parser = absolute)]
    cni_conf_dir: Option<PathBuf>,
    /// Directory of CNI plugins; repeat the option for each plugin directory of the runtime; default: the directories
    /// of the last install, else /opt/cni/bin
    #[arg(long, value_name = "DIRECTORY", value_parser = absolute)]
    cni_bin_dir: Vec<PathBuf>,
    /// Name of the network to examine; default: the network of the last install, else the network that containerd or
    /// CRI-O uses for pods
    #[arg(long, value_name = "NAME")]
    network: Option<String>,
    /// State directory of rdma-cni; default: stateDir of its configuration, else /var/lib/cni/rdma-cni
    #[arg(long, value_name = "DIRECTORY", value_parser = absolute)]
    state_dir: Option<PathBuf>,
    /// Kubelet's directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet", value_parser = absolute)]
    kubelet_dir: PathBuf,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    /// Shows a pod's rails, the GID index of each address, the GID at the index that the pod's programs have pinned,
    /// and the GIDs that NCCL chooses without a pinned index
    Pod(Question),
}

/// Options of `doctor pod`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The pod's name, or NAMESPACE/NAME if several pods have this name
    #[arg(value_name = "[NAMESPACE/]NAME")]
    pub pod: String,
    /// GID index that the pod's programs have pinned (NCCL_IB_GID_INDEX); Lingjun's presets pin 3
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub gid_index: u32,
    /// Directory at which this container has the host's file system mounted
    #[arg(long, value_name = "DIRECTORY", default_value = "/", value_parser = absolute)]
    pub root: PathBuf,
    /// State directory of rdma-cni
    #[arg(long, value_name = "DIRECTORY", default_value = STATE_DIR, value_parser = absolute)]
    pub state_dir: PathBuf,
    /// Pings this other pod of the node, or this address, over RDMA from inside the pod. The exit code is then the exit
    /// code of ping
    #[arg(long, value_name = "[NAMESPACE/]NAME|ADDRESS", conflicts_with = "root")]
    pub to: Option<String>,
    /// Prints the answers to the ping as JSON, and nothing else
    #[arg(long, requires = "to")]
    pub json: bool,
}

/// Paths of the node's files that `doctor` reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Root of the host's file system. The other paths are absolute paths of the host, so `doctor` reads them below
    /// this root.
    pub root: PathBuf,
    /// Directory of the network configurations.
    pub conf_dir: PathBuf,
    /// Directories of CNI plugins, in the runtime's search order.
    pub bin_dirs: Vec<PathBuf>,
    /// Name of the network; `None`: the network that the runtime uses for pods.
    pub network: Option<String>,
    /// State directory of `rdma-cni`; `None`: `stateDir` of the configuration, else `/var/lib/cni/rdma-cni`.
    pub state_dir: Option<PathBuf>,
    /// Kubelet's directory.
    pub kubelet_dir: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            root: "/".into(),
            conf_dir: "/etc/cni/net.d".into(),
            bin_dirs: vec!["/opt/cni/bin".into()],
            network: None,
            state_dir: None,
            kubelet_dir: "/var/lib/kubelet".into(),
        }
    }
}

impl Arguments {
    /// Returns the directory of the installation's record, below the host's root.
    pub fn record_dir(&self) -> PathBuf {
        let state_dir = self.state_dir.as_deref();
        let state_dir = state_dir.unwrap_or_else(|| Path::new(STATE_DIR));
        below(&self.root, state_dir)
    }

    /// Returns the paths. An option overrides `installed`, the paths of the last installation.
    pub(super) fn paths(&self, installed: Paths) -> Paths {
        let bin_dirs = Some(self.cni_bin_dir.clone()).filter(|it| !it.is_empty());
        Paths {
            root: self.root.clone(),
            conf_dir: self.cni_conf_dir.clone().unwrap_or(installed.conf_dir),
            bin_dirs: bin_dirs.unwrap_or(installed.bin_dirs),
            network: self.network.clone().or(installed.network),
            state_dir: self.state_dir.clone(),
            kubelet_dir: self.kubelet_dir.clone(),
        }
    }
}

/// Returns the path by which this program reaches the host's `path`. `root` is the root of the
/// host's file system.
pub(super) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Parses a directory of the host. Refuses a relative path.
pub(super) fn absolute(text: &str) -> Result<PathBuf, &'static str> {
    match text.starts_with('/') {
        true => Ok(text.into()),
        false => Err("must be an absolute path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    #[command(name = "doctor")]
    struct Whole {
        #[command(flatten)]
        arguments: Arguments,
    }

    #[track_caller]
    fn parsed(line: &str) -> Arguments {
        let words = ["doctor"].into_iter().chain(line.split_whitespace());
        Whole::parse_from(words).arguments
    }

    #[test]
    fn an_option_wins_over_the_record() {
        let none = parsed("");
        assert_eq!(none.paths(Paths::default()), Paths::default());
        assert_eq!(none.record_dir(), Path::new("/var/lib/cni/rdma-cni"));
        let of_record = Paths {
            conf_dir: "/net.d".into(),
            bin_dirs: vec!["/one".into(), "/two".into()],
            network: Some("rails".to_owned()),
            ..Paths::default()
        };
        assert_eq!(none.paths(of_record.clone()), of_record);
        let all = parsed(
            "--root /host --cni-conf-dir /c --cni-bin-dir /b --cni-bin-dir /c --network other \
             --state-dir /s --kubelet-dir /k --json --strict",
        );
        let expected = Paths {
            root: "/host".into(),
            conf_dir: "/c".into(),
            bin_dirs: vec!["/b".into(), "/c".into()],
            network: Some("other".to_owned()),
            state_dir: Some("/s".into()),
            kubelet_dir: "/k".into(),
        };
        assert_eq!(all.paths(of_record), expected);
        assert_eq!(all.record_dir(), Path::new("/host/s"));
        assert!(all.json && all.strict && !all.facts);
    }

    #[test]
    fn a_pod_has_a_name_and_the_index_that_presets_pin() {
        let question = |line: &str| match parsed(line).command {
            Some(Command::Pod(question)) => question,
            None => panic!("{line} names no pod"),
        };
        let expected = Question {
            pod: "trainer-0".to_owned(),
            gid_index: 3,
            root: "/".into(),
            state_dir: STATE_DIR.into(),
            to: None,
            json: false,
        };
        assert_eq!(question("pod trainer-0"), expected);
        let expected = Question {
            pod: "a/b".to_owned(),
            gid_index: 5,
            root: "/host".into(),
            state_dir: "/s".into(),
            to: None,
            json: false,
        };
        let line = "pod --gid-index 5 a/b --root /host --state-dir /s";
        assert_eq!(question(line), expected);
        let to = question("pod a --to b --json");
        assert_eq!((to.to.as_deref(), to.json), (Some("b"), true));
    }

    #[test]
    fn wrong_usage_names_the_word_and_the_nearest_one() {
        for (line, words) in [
            ("--yaml", &["unexpected argument '--yaml'"][..]),
            ("--jso", &["unexpected argument '--jso'", "'--json'"]),
            ("pods", &["unrecognized subcommand 'pods'", "'pod'"]),
            ("--root", &["a value is required for '--root <DIRECTORY>'"]),
            (
                "--root host",
                &["'host'", "--root", "must be an absolute path"],
            ),
            (
                "--state-dir x",
                &["--state-dir", "must be an absolute path"],
            ),
            (
                "--json --facts",
                &["'--json' cannot be used with '--facts'"],
            ),
            ("pod", &["<[NAMESPACE/]NAME>"]),
            (
                "pod a --gid-index x",
                &["invalid value 'x' for '--gid-index <N>'"],
            ),
            ("pod a b", &["unexpected argument 'b'"]),
            ("pod a --root x", &["--root", "must be an absolute path"]),
            (
                "pod a --json",
                &["required", "--to <[NAMESPACE/]NAME|ADDRESS>"],
            ),
            (
                "pod a --to b --root /host",
                &["'--to", "cannot be used with '--root"],
            ),
        ] {
            let given = ["doctor"].into_iter().chain(line.split_whitespace());
            let error = Whole::try_parse_from(given).expect_err(line).to_string();
            for word in words {
                assert!(error.contains(word), "{line}: no {word:?} in {error}");
            }
        }
    }
}
