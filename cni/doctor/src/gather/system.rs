// SPDX-License-Identifier: Apache-2.0
//! Observes kernel modules, the mode of the RDMA subsystem at boot, udev's names, and bonds.

use super::{
    super::facts::{BootMode, ModuleState, Naming},
    view::View,
};
use rdma_netns::{Observed, RdmaMode, device::RDMA_DRIVERS};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Directories of one kind of configuration, in order of precedence. A file in an earlier directory replaces files with
/// the same name in later directories (`modprobe.d(5)`, `udev(7)`).
const ABOVE: [&str; 5] = ["/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"];

/// Kernel modules, each with a path in sysfs that proves that the module is loaded or built in.
const MODULES: [(&str, &str); 5] = [
    ("ib_core", "class/infiniband"),
    ("ib_uverbs", "class/infiniband_verbs"),
    ("rdma_ucm", "class/misc/rdma_cm"),
    ("smc", "module/smc"),
    ("smc_diag", "module/smc_diag"),
];

pub(super) fn modules(view: &mut View) -> BTreeMap<String, ModuleState> {
    let release = view.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let directory = PathBuf::from("/lib/modules").join(release.trim_end());
    let mut list = |file: &str| {
        let text = view.text(directory.join(file));
        text.map(|text| text.lines().filter_map(module).collect::<BTreeSet<_>>())
    };
    let (loadable, built_in) = (list("modules.dep"), list("modules.builtin"));
    let state = |name: &str, mark: &str| {
        let has =
            |list: &Option<BTreeSet<String>>| list.as_ref().is_some_and(|it| it.contains(name));
        let sysfs = PathBuf::from("/sys");
        match (&loadable, &built_in) {
            _ if view.has(sysfs.join("module").join(name)) || view.has(sysfs.join(mark)) => {
                ModuleState::Loaded
            }
            (_, built_in) if has(built_in) => ModuleState::Loaded,
            (loadable, _) if has(loadable) => ModuleState::Available,
            (None, _) => ModuleState::Unknown,
            _ => ModuleState::Missing,
        }
    };
    let drivers = RDMA_DRIVERS.map(|(_, module)| (module, "module/none"));
    let all = MODULES.into_iter().chain(drivers);
    all.map(|(name, mark)| (name.to_owned(), state(name, mark)))
        .collect()
}

/// Returns the name of the module in a line of `modules.dep` (`kernel/drivers/infiniband/core/ib_core.ko.xz: …`) or
/// `modules.builtin`, with `_` for `-`.
pub fn module(line: &str) -> Option<String> {
    let file = line.split(':').next()?.rsplit('/').next()?;
    let (name, _) = file.split_once(".ko")?;
    Some(name.replace('-', "_"))
}

/// Returns the settings of the mode in the order in which they apply: module options by file name, the kernel's command
/// line, enabled systemd units.
pub(super) fn boot_modes(view: &mut View) -> Vec<BootMode> {
    let mut found = vec![];
    for (path, text) in files(view, "modprobe.d", ".conf") {
        let modes = text.lines().filter_map(option);
        found.extend(modes.map(|mode| BootMode {
            file: path.clone(),
            mode,
        }));
    }
    let line = view.text("/proc/cmdline").unwrap_or_default();
    let options = line.split_ascii_whitespace();
    let options = options.filter_map(|word| word.strip_prefix("ib_core.netns_mode="));
    found.extend(options.filter_map(mode).map(|mode| BootMode {
        file: "/proc/cmdline".into(),
        mode,
    }));
    let units = PathBuf::from("/etc/systemd/system");
    let directories = view.names(&units).unwrap_or_default();
    let wanted = directories.iter().filter(|name| name.ends_with(".wants"));
    for directory in wanted.map(|name| units.join(name)) {
        for name in view.names(&directory).unwrap_or_default() {
            let file = view.target(directory.join(name));
            let text = view.text(&file).unwrap_or_default();
            found.extend(unit(&text).map(|mode| BootMode { file, mode }));
        }
    }
    found
}

/// Returns the mode that a line of `modprobe.d` sets, such as `options ib_core netns_mode=0`.
pub fn option(line: &str) -> Option<RdmaMode> {
    let mut words = line.split_ascii_whitespace();
    if words.next() != Some("options") || words.next()?.replace('-', "_") != "ib_core" {
        return None;
    }
    words
        .filter_map(|word| mode(word.strip_prefix("netns_mode=")?))
        .next_back()
}

/// Parses the value of `netns_mode`: true is shared mode (`drivers/infiniband/core/device.c`).
fn mode(value: &str) -> Option<RdmaMode> {
    match value {
        "0" | "n" | "N" => Some(RdmaMode::Exclusive),
        "1" | "y" | "Y" => Some(RdmaMode::Shared),
        _ => None,
    }
}

/// Returns the mode that a command of a systemd unit sets, such as `rdma system set netns exclusive`.
pub fn unit(text: &str) -> Option<RdmaMode> {
    let commands = text.lines().filter(|line| line.starts_with("Exec"));
    let mut modes = commands.filter_map(|line| {
        let (_, mode) = line.split_once("system set netns ")?;
        match mode.split(|c: char| !c.is_ascii_alphabetic()).next()? {
            "exclusive" => Some(RdmaMode::Exclusive),
            "shared" => Some(RdmaMode::Shared),
            _ => None,
        }
    });
    modes.next_back()
}

/// Returns the last udev rule that renames RDMA devices.
pub(super) fn naming(view: &mut View) -> Option<Naming> {
    let rules = files(view, "udev/rules.d", ".rules").into_iter();
    let mut rules = rules.filter_map(|(file, text)| {
        let policy = text.lines().filter_map(policy).next_back()?;
        Some(Naming { file, policy })
    });
    rules.next_back()
}

/// Returns the policy by which a line of a udev rule renames devices, such as `NAME_FALLBACK` in `PROGRAM="rdma_rename
/// %k NAME_FALLBACK"`.
pub fn policy(line: &str) -> Option<String> {
    let line = line.trim_start();
    let (_, after) = line.split_once("rdma_rename")?;
    let (_, policy) = after.split_once("NAME_")?;
    let policy: String = policy
        .chars()
        .take_while(|c| c.is_ascii_alphabetic())
        .collect();
    (!line.starts_with('#')).then(|| format!("NAME_{policy}"))
}

/// Returns path and text of the effective files in `directory` whose names end with `ending`, by name.
fn files(view: &mut View, directory: &str, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for above in ABOVE {
        let directory = PathBuf::from(above).join(directory);
        let names = view.names(&directory).unwrap_or_default();
        for name in names.into_iter().filter(|name| name.ends_with(ending)) {
            found.entry(name.clone()).or_insert(directory.join(name));
        }
    }
    let files = found.into_values();
    files
        .filter_map(|path| Some((path.clone(), view.text(&path)?)))
        .collect()
}

pub(super) fn bond_modes(view: &mut View, observed: Option<&Observed>) -> BTreeMap<String, String> {
    let links = observed.into_iter().flat_map(|it| &it.host.links);
    let mut modes = BTreeMap::new();
    for link in links.filter(|link| link.kind.as_deref() == Some("bond")) {
        let file = format!("/sys/class/net/{}/bonding/mode", link.name);
        // the file's format is `802.3ad 4`
        let text = view.text(file).unwrap_or_default();
        let mode = text.split_ascii_whitespace().next();
        modes.extend(mode.map(|mode| (link.name.to_string(), mode.to_owned())));
    }
    modes
}

#[cfg(test)]
mod tests {
    use super::*;
    use RdmaMode::{Exclusive, Shared};
    use std::{fs, path::Path};

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn modules_are_loaded_or_can_be_or_not() {
        let root = tempfile::tempdir().expect("a directory");
        let mut view = View::new(root.path());
        assert_eq!(modules(&mut view)["smc"], ModuleState::Unknown);
        write(root.path(), "proc/sys/kernel/osrelease", "6.1.0\n");
        write(
            root.path(),
            "lib/modules/6.1.0/modules.dep",
            "kernel/net/smc/smc.ko.xz: kernel/x/ib_core.ko.xz\nkernel/x/ib-uverbs.ko:\n",
        );
        write(
            root.path(),
            "lib/modules/6.1.0/modules.builtin",
            "kernel/net/smc/smc_diag.ko\n",
        );
        fs::create_dir_all(root.path().join("sys/class/infiniband")).expect("made");
        let states = modules(&mut view);
        let expected = [
            ("ib_core", ModuleState::Loaded),
            ("ib_uverbs", ModuleState::Available),
            ("rdma_ucm", ModuleState::Missing),
            ("smc", ModuleState::Available),
            ("smc_diag", ModuleState::Loaded),
        ];
        for (name, state) in expected {
            assert_eq!(states[name], state, "{name}");
        }
        assert_eq!(view.unseen, []);
    }

    #[test]
    fn the_mode_at_boot_is_set_by_files_of_the_same_name_once_and_by_units() {
        let root = tempfile::tempdir().expect("a directory");
        write(
            root.path(),
            "usr/lib/modprobe.d/rdma.conf",
            "options ib_core netns_mode=1\n",
        );
        write(
            root.path(),
            "etc/modprobe.d/rdma.conf",
            "# options ib_core netns_mode=1\noptions ib-core  x=1 netns_mode=0\n\
             options ib_cm netns_mode=1\n",
        );
        write(
            root.path(),
            "proc/cmdline",
            "quiet ib_core.netns_mode=Y ib_core.netns_mode=7\n",
        );
        write(
            root.path(),
            "etc/systemd/system/sysinit.target.wants/a.service",
            "[Service]\nExecStart=rdma system set netns exclusive\n",
        );
        write(
            root.path(),
            "etc/systemd/system/b.service",
            "ExecStart=rdma system set netns shared\n",
        );
        let found = boot_modes(&mut View::new(root.path()));
        let found: Vec<_> = found
            .iter()
            .map(|it| (it.file.to_str().expect("UTF-8"), it.mode))
            .collect();
        let unit = "/etc/systemd/system/sysinit.target.wants/a.service";
        let expected = [
            ("/etc/modprobe.d/rdma.conf", Exclusive),
            ("/proc/cmdline", Shared),
            (unit, Exclusive),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_rule_is_taken_away_by_an_empty_file_of_its_name() {
        let root = tempfile::tempdir().expect("a directory");
        let rules = "# rdma_rename %k NAME_KERNEL\n\
                     SUBSYSTEM==\"infiniband\", PROGRAM=\"rdma_rename %k NAME_FALLBACK\"\n";
        let file = "lib/udev/rules.d/60-rdma-persistent-naming.rules";
        write(root.path(), file, rules);
        let mut view = View::new(root.path());
        let found = naming(&mut view).expect("a rule");
        assert_eq!(found.policy, "NAME_FALLBACK");
        assert_eq!(found.file, Path::new("/").join(file));
        write(root.path(), &file.replace("lib/", "etc/"), "");
        assert_eq!(naming(&mut view), None);
    }
}
