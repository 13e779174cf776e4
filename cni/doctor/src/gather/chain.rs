// SPDX-License-Identifier: Apache-2.0
//! Observes the network configuration that the runtime uses, and the programs that it names.

use super::{
    super::{
        arguments::Paths,
        facts::{Binary, BinaryState, Chain, NOT_MOUNTED, Picked, Runtime, Skipped},
    },
    view::{View, is_absent, overrides_modes},
};
use cni_protocol::run;
use conflist::{Choice, Directory, Pick, Position, pick::Skip};
use network_conf::Conf;
use serde_json::{Map, Value, json};
use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Time limit for a program's `--version`.
const LIMIT: Duration = Duration::from_secs(2);

/// Programs of this project. They report their version.
const OURS: [&str; 3] = ["rdma-cni", "rdma-ipam", "rdma"];

/// Returns the runtime's choice in the directory of network configurations. `None`: this program cannot read the
/// directory or one of its files, or an unusable file is a link whose target this program cannot see.
pub(super) fn read(view: &mut View, paths: &Paths, runtimes: &[Runtime]) -> Option<Chain> {
    let conf_dir = &paths.conf_dir;
    let read = Directory::read(&view.path(conf_dir));
    let is_denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    let denied = read.as_ref().is_err_and(is_denied);
    let read = view.keep(&conf_dir.display().to_string(), read);
    if denied {
        return None;
    }
    let directory = read.flatten().unwrap_or_default();
    let is_crio = !runtimes.is_empty() && runtimes.iter().all(|it| it.name == "CRI-O");
    let runtime = match (&paths.network, is_crio) {
        (Some(network), _) => conflist::Runtime::Named {
            network: network.clone(),
        },
        (None, true) => conflist::Runtime::Crio { network: None },
        (None, false) => conflist::Runtime::Containerd,
    };
    let Pick { choice, skipped } = conflist::pick(&directory, &runtime);
    let is_of_interest = |it: &conflist::pick::Skipped| matches!(it.why, Skip::Broken(_));
    let broken = skipped.into_iter().filter(is_of_interest);
    let mut chain = Chain {
        directory: conf_dir.to_owned(),
        network: paths.network.clone(),
        skipped: broken
            .map(|skipped| Skipped {
                file: conf_dir.join(skipped.file),
                why: skipped.why.to_string(),
            })
            .collect(),
        ..Chain::default()
    };
    if let Choice::Blocked { file, why } = &choice {
        chain.blocked = Some(Skipped {
            file: conf_dir.join(file),
            why: why.to_string(),
        });
    }
    let mut unusable = chain.skipped.iter().chain(&chain.blocked);
    if let Some(link) = unusable.clone().find(|it| view.leads_out(&it.file)) {
        let link = link.file.display();
        let why = format!("{link} is a symbolic link, and its target is {NOT_MOUNTED}");
        view.misses("the network configuration", why);
        return None;
    }
    // the runtime may be able to read a file that this program cannot read
    if let Some((file, why)) = unusable.find_map(|it| Some((&it.file, view.denial(&it.file)?))) {
        let why = format!("{}: {why}", file.display());
        view.misses("the network configuration", why);
        return None;
    }
    if let Choice::Picked(found) = choice {
        // `rdma-cni` can be in the list that Multus calls, or in the network's own directory (libcni 1.3)
        let mut found = conflist::follow(&directory, found);
        let mut in_directory = conflist::placement::in_directory(&directory, &found)
            .filter(|_| found.ours.is_none())
            .map(|it| (it.file, it.configuration))
            .collect::<Vec<_>>()
            .into_iter();
        if found.types.is_empty() {
            found.types = conflist::placement::others(&directory, &found);
        }
        let found = picked(conf_dir, found);
        let handed = |ours| injected(ours, &found.network, &found.cni_version);
        chain.picked = Some(match in_directory.next() {
            None => found,
            Some((file, ours)) => Picked {
                file: conf_dir.join(file),
                place: Some(found.plugins.len()),
                plugins: [found.plugins, vec!["rdma-cni".to_owned()]].concat(),
                in_directory: true,
                ours: Some(handed(ours)),
                again: in_directory.map(|(_, ours)| handed(ours)).collect(),
                ..found
            },
        });
    }
    Some(chain)
}

fn picked(conf_dir: &Path, found: conflist::Picked) -> Picked {
    let place = found.ours.as_ref().map(|ours| ours.place);
    let handed = |ours| injected(ours, &found.network, &found.version);
    Picked {
        file: conf_dir.join(&found.file),
        plugins: found.types,
        place: place.map(|(Position::Plugin(place) | Position::Delegate(place))| place),
        delegated: matches!(place, Some(Position::Delegate(_))),
        in_directory: false,
        again: found.again.into_iter().map(handed).collect(),
        ours: found.ours.map(|ours| handed(ours.configuration)),
        cni_version: found.version,
        network: found.network,
    }
}

/// Adds the fields `name` and `cniVersion`, as the runtime does (`buildOneConfig()`, `libcni/api.go`).
fn injected(mut ours: Map<String, Value>, network: &str, version: &str) -> Map<String, Value> {
    ours.insert("name".to_owned(), json!(network));
    if !version.is_empty() {
        ours.insert("cniVersion".to_owned(), json!(version));
    }
    ours
}

/// Returns the programs of all plugins in the list, of the IPAM plugin, and of this project.
pub(super) fn binaries(
    view: &mut View,
    bin_dirs: &[PathBuf],
    chain: &Chain,
    conf: Option<&Conf>,
) -> Vec<Binary> {
    let types = chain.picked.iter().flat_map(|picked| &picked.plugins);
    let mut names: Vec<&str> = types.map(String::as_str).collect();
    names.extend(conf.and_then(|conf| conf.ipam.as_deref()));
    names.push("rdma-cni");
    // also check an `rdma-ipam` that the configuration does not name, because another plugin may call it
    let mut places = bin_dirs.iter();
    names.extend(Some("rdma-ipam").filter(|name| places.any(|dir| view.has(dir.join(name)))));
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .map(|name| {
            let mut paths = bin_dirs.iter().map(|dir| dir.join(name));
            let first = paths.clone().next().unwrap_or_default();
            let found = paths.clone().find(|it| view.has(it) || view.leads_out(it));
            // a program that this program cannot see is not missing
            let is_unknown = |it: &PathBuf| {
                let error = fs::metadata(view.path(it)).err();
                error.is_some_and(|error| !is_absent(&error))
            };
            let path = found.or_else(|| paths.find(is_unknown)).unwrap_or(first);
            let state = match view.leads_out(&path) {
                true => BinaryState::There,
                false => state(&view.path(&path), OURS.contains(&name)),
            };
            Binary { path, state }
        })
        .collect()
}

fn state(path: &Path, ours: bool) -> BinaryState {
    match fs::metadata(path) {
        Err(error) if is_absent(&error) => BinaryState::Absent,
        Err(error) => BinaryState::Mute {
            why: error.to_string(),
        },
        Ok(found) if !found.is_file() || found.permissions().mode() & 0o111 == 0 => {
            BinaryState::NotExecutable
        }
        Ok(_) if ours => version(path),
        Ok(_) => BinaryState::There,
    }
}

/// Reads the version of the program at `path` from the output of its `--version`, such as `rdma-cni 0.1.0`.
fn version(path: &Path) -> BinaryState {
    let mut program = Command::new(path);
    program.arg("--version").env_clear().stderr(Stdio::null());
    let (status, output) = match run::until(Instant::now() + LIMIT, program, &[]) {
        Ok(ended) => ended,
        // the runtime, which has this capability, cannot execute the program either
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && overrides_modes() => {
            return BinaryState::NotExecutable;
        }
        Err(error) => {
            return BinaryState::Mute {
                why: error.to_string(),
            };
        }
    };
    let output = String::from_utf8_lossy(&output);
    let words: Vec<&str> = output.split_ascii_whitespace().collect();
    match words[..] {
        [name, version] if status.success() && OURS.contains(&name) => BinaryState::Version {
            version: version.to_owned(),
        },
        _ => BinaryState::Mute {
            why: "another program has this name".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Memlock, Socket};
    use nix::unistd::{Uid, geteuid, setfsuid};
    use std::{os::unix::fs::symlink, path::PathBuf};

    fn at(conf_dir: &str) -> Paths {
        Paths {
            conf_dir: conf_dir.into(),
            ..Paths::default()
        }
    }

    fn program(directory: &Path, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
        path
    }

    /// Returns the state of a new program. Tries again while the file is open for writing in a child process that
    /// another thread has just forked.
    fn settled(path: &Path, ours: bool) -> BinaryState {
        loop {
            match state(path, ours) {
                BinaryState::Mute { why } if why.contains("Text file busy") => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                found => return found,
            }
        }
    }

    #[test]
    fn our_file_in_the_network_s_own_directory_is_found() {
        let root = tempfile::tempdir().expect("a directory");
        let net = root.path().join("net.d");
        fs::create_dir_all(net.join("cbr0")).expect("made");
        let list = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;
        fs::write(net.join("10-flannel.conflist"), list).expect("written");
        let ours = net.join("cbr0/99-rdma-cni.conf");
        let found = || {
            let mut view = View::new(root.path());
            read(&mut view, &at("/net.d"), &[])
                .and_then(|it| it.picked)
                .expect("a list")
        };
        for (text, is_called) in [
            (r#"{"type":"rdma-cni","detect":true}"#, false),
            (r#"{"type":"rdma-cni","mtu":4200}"#, true),
        ] {
            fs::write(&ours, text).expect("written");
            let picked = found();
            assert_eq!(
                (picked.in_directory, picked.ours.is_some()),
                (is_called, is_called)
            );
        }
        let picked = found();
        let expected =
            json!({"type": "rdma-cni", "mtu": 4200, "name": "cbr0", "cniVersion": "1.0.0"});
        assert_eq!(picked.ours.map(Value::Object), Some(expected));
        assert_eq!(picked.file, Path::new("/net.d/cbr0/99-rdma-cni.conf"));
        assert_eq!(
            (picked.plugins, picked.place),
            (vec!["flannel".to_owned(), "rdma-cni".to_owned()], Some(1))
        );
    }

    /// All plugins of the network are in its own directory.
    #[test]
    fn a_list_without_plugins_has_those_of_its_directory() {
        let root = tempfile::tempdir().expect("a directory");
        let net = root.path().join("net.d");
        fs::create_dir_all(net.join("cbr0")).expect("made");
        let list = r#"{"cniVersion":"1.0.0","name":"cbr0"}"#;
        fs::write(net.join("10-flannel.conflist"), list).expect("written");
        let ours = r#"{"type":"rdma-cni"}"#;
        for (file, text, plugins, place) in [
            (
                "10-flannel.conf",
                r#"{"type":"flannel"}"#,
                &["flannel"][..],
                None,
            ),
            ("99-rdma-cni.conf", ours, &["flannel", "rdma-cni"], Some(1)),
        ] {
            fs::write(net.join("cbr0").join(file), text).expect("written");
            let mut view = View::new(root.path());
            let found = read(&mut view, &at("/net.d"), &[]).expect("a chain");
            assert_eq!(found.blocked, None);
            let picked = found.picked.expect("a list");
            assert_eq!(picked.plugins, plugins);
            assert_eq!(picked.place, place);
        }
    }

    /// The first target is outside the given root. The runtime may see the file there, so `doctor` does not judge the
    /// link.
    #[test]
    fn a_link_that_leads_out_of_another_root_is_not_judged() {
        let root = tempfile::tempdir().expect("a directory");
        let list = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;
        fs::write(root.path().join("10-flannel.conflist"), list).expect("written");
        let link = root.path().join("05-net.conflist");
        let crio = Runtime {
            name: "CRI-O".to_owned(),
            socket: Socket {
                path: "/run/crio/crio.sock".into(),
                silent: None,
            },
            memlock: Memlock::default(),
        };
        for (target, is_seen) in [("/opt/net/05-net.conflist", false), ("05-gone", true)] {
            symlink(target, &link).expect("a link");
            for runtimes in [vec![], vec![crio.clone()]] {
                let mut view = View::new(root.path());
                let found = read(&mut view, &at("/"), &runtimes);
                assert_eq!(found.is_some(), is_seen, "{target}");
                assert_eq!(view.unseen.is_empty(), is_seen, "{:?}", view.unseen);
            }
            fs::remove_file(&link).expect("removed");
        }
    }

    /// A list can have two version fields. libcni uses the latest known version in them, and passes it to `rdma-cni`.
    #[test]
    fn the_version_is_the_latest_that_the_list_has() {
        let root = tempfile::tempdir().expect("a directory");
        for (versions, expected) in [
            (r#""cniVersions":["0.4.0","1.0.0"]"#, "1.0.0"),
            (
                r#""cniVersion":"0.4.0","cniVersions":["1.1.0","0.3.1","7.0.0"]"#,
                "1.1.0",
            ),
            (r#""cniVersion":"0.4.0""#, "0.4.0"),
        ] {
            let list = format!(
                r#"{{{versions},"name":"cbr0","plugins":[{{"type":"flannel"}},{{"type":"rdma-cni"}}]}}"#
            );
            fs::write(root.path().join("10-flannel.conflist"), list).expect("written");
            let mut view = View::new(root.path());
            let picked = read(&mut view, &at("/"), &[])
                .and_then(|it| it.picked)
                .expect("a list");
            assert_eq!(picked.cni_version, expected, "{versions}");
            assert_eq!(picked.ours.expect("ours")["cniVersion"], expected);
        }
    }

    #[test]
    fn each_entry_of_ours_is_found() {
        let root = tempfile::tempdir().expect("a directory");
        let list = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"},
            {"type":"rdma-cni"},{"type":"tuning"},{"type":"rdma","deviceID":"0000:3b:00.2"}]}"#;
        fs::write(root.path().join("10-flannel.conflist"), list).expect("written");
        let mut view = View::new(root.path());
        let picked = read(&mut view, &at("/"), &[])
            .and_then(|it| it.picked)
            .expect("a list");
        let expected = json!({
            "type": "rdma", "deviceID": "0000:3b:00.2", "name": "cbr0", "cniVersion": "1.0.0",
        });
        assert_eq!(
            picked
                .again
                .into_iter()
                .map(Value::Object)
                .collect::<Vec<_>>(),
            [expected]
        );
    }

    #[test]
    fn a_program_reports_its_version_or_an_error() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = |text: &str| format!("#!/bin/sh\necho {text}\n");
        let at = |name: &str, text: &str, mode| program(directory.path(), name, text, mode);
        let ours = at("ours", &script("rdma-ipam 0.2.0"), 0o755);
        let expected = BinaryState::Version {
            version: "0.2.0".to_owned(),
        };
        assert_eq!(settled(&ours, true), expected);
        assert_eq!(state(&ours, false), BinaryState::There);
        let other = at("other", &script("CNI plugin rdma v1.2"), 0o755);
        let hung = at("hung", "#!/bin/sh\nexec sleep 5\n", 0o755);
        for path in [other, hung] {
            let found = settled(&path, true);
            assert!(matches!(found, BinaryState::Mute { .. }), "{found:?}");
        }
        let plain = at("plain", "", 0o644);
        assert_eq!(state(&plain, true), BinaryState::NotExecutable);
        let none = directory.path().join("none");
        assert_eq!(state(&none, true), BinaryState::Absent);
        assert_eq!(state(&plain.join("below"), true), BinaryState::Absent);
    }

    /// The runtime calls the plugins as root.
    #[test]
    fn a_program_that_the_kernel_does_not_let_root_execute_is_not_executable() {
        let directory = tempfile::tempdir().expect("a directory");
        let shell = program(directory.path(), "shell", "", 0o644);
        let text = format!("#!{}\n", shell.display());
        let ours = program(directory.path(), "ours", &text, 0o755);
        let found = settled(&ours, true);
        match geteuid().is_root() {
            true => assert_eq!(found, BinaryState::NotExecutable),
            false => assert!(matches!(found, BinaryState::Mute { .. }), "{found:?}"),
        }
    }

    /// Runs `observe` as root without the capability CAP_DAC_OVERRIDE, as in the daemon's container.
    fn without_capability<T: Send>(observe: impl FnOnce() -> T + Send) -> T {
        let run = || {
            // give up root's access to all files in this thread
            setfsuid(Uid::from_raw(65534));
            observe()
        };
        std::thread::scope(|scope| scope.spawn(run).join()).expect("observed")
    }

    /// The runtime can read and execute these files, because it has all capabilities.
    #[test]
    fn root_without_capabilities_does_not_judge_files_that_it_cannot_use() {
        let root = tempfile::tempdir().expect("a directory");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let ours = program(root.path(), "ours", "#!/bin/sh\n", 0o700);
        let list = r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"}]}"#;
        program(root.path(), "05-net.conflist", list, 0o600);
        program(root.path(), "10-net.conflist", list, 0o644);
        let denied = io::Error::from_raw_os_error(nix::libc::EACCES).to_string();
        let found = without_capability(|| settled(&ours, true));
        assert_eq!(found, BinaryState::Mute { why: denied });
        let observe = || {
            let mut view = View::new(root.path());
            (read(&mut view, &at("/"), &[]).is_some(), view.unseen)
        };
        let (is_seen, unseen) = without_capability(observe);
        assert!(!is_seen, "{unseen:?}");
        let [unseen] = &unseen[..] else {
            panic!("{unseen:?}");
        };
        assert!(unseen.why.contains("/05-net.conflist"), "{unseen:?}");
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o700)).expect("set");
        assert!(!without_capability(observe).0);
        assert!(observe().0);
    }

    #[test]
    fn a_program_in_a_directory_that_cannot_be_read_is_not_missing() {
        let root = tempfile::tempdir().expect("a directory");
        let bin_dirs = ["/first", "/second"].map(PathBuf::from);
        for directory in ["first", "second"] {
            fs::create_dir(root.path().join(directory)).expect("made");
        }
        program(&root.path().join("second"), "rdma-cni", "", 0o755);
        let closed = fs::Permissions::from_mode(0o000);
        fs::set_permissions(root.path().join("second"), closed).expect("set");
        let observe = || {
            let mut view = View::new(root.path());
            binaries(&mut view, &bin_dirs, &Chain::default(), None)
        };
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).expect("set");
        let found = without_capability(observe);
        let [rdma_cni, ..] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(rdma_cni.path, Path::new("/second/rdma-cni"));
        let expected = BinaryState::Mute {
            why: io::Error::from_raw_os_error(nix::libc::EACCES).to_string(),
        };
        assert_eq!(rdma_cni.state, expected);
    }
}
