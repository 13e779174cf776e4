// SPDX-License-Identifier: Apache-2.0
//! Reads files below the host's root. Ignores missing files, and reports unreadable files.

use crate::{
    arguments::Paths,
    facts::{ANOTHER_NETNS, NOT_MOUNTED, Part, Unseen},
};
use attachments::{Attachment, pods::netns_seen};
use cni_protocol::state_file;
use nix::unistd::geteuid;
use rdma_netns::capabilities::{self, CAP_DAC_OVERRIDE};
use std::{
    collections::BTreeSet,
    fmt::Display,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Returns the path by which this program reaches the namespace of `attachment`. `root` is the root of the host's file
/// system. If `root` is `/`, this program may be in a container without the link `/var/run`, so `netns_seen` also tries
/// `/run`.
pub(crate) fn netns_below(root: &Path, attachment: &Attachment) -> PathBuf {
    match root == Path::new("/") {
        true => netns_seen(attachment.netns.clone(), attachment.netns_id),
        false => below(root, &attachment.netns),
    }
}

/// Returns the host's `path` below a `root` other than `/`. Replaces `/var/run` by `/run`: `/var/run` is usually a
/// link, and its target would be outside `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    match path.strip_prefix("/var/run") {
        Ok(below) => root.join("run").join(below),
        Err(_) => root.join(path.strip_prefix("/").unwrap_or(path)),
    }
}

/// Access to the node's files. Records the parts that this program cannot see.
pub(super) struct View {
    root: PathBuf,
    pub(super) unseen: Vec<Unseen>,
}

impl View {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            unseen: vec![],
        }
    }

    /// Returns the path by which this program reaches the host's `path`.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        match self.root == Path::new("/") {
            true => path.to_owned(),
            false => below(&self.root, path),
        }
    }

    /// Returns the path by which this program reaches the namespace of `attachment`.
    pub(super) fn netns(&self, attachment: &Attachment) -> PathBuf {
        netns_below(&self.root, attachment)
    }

    /// Returns the value of a successful read. Otherwise records the part `what` as unseen, with the error.
    pub(super) fn keep<T, E: Display>(&mut self, what: &str, found: Result<T, E>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            Err(why) => {
                self.misses(what, why);
                None
            }
        }
    }

    /// Records the part `what` as unseen, for the reason `why`.
    pub(super) fn misses(&mut self, what: &str, why: impl Display) {
        self.unseen.push(Unseen {
            what: what.to_owned(),
            why: why.to_string(),
        });
    }

    /// Records the part `what` as unseen, for the reason `why`, unless it is already recorded for this reason.
    pub(super) fn misses_once(&mut self, what: &str, why: &str) {
        let is_it = |it: &Unseen| it.what == what && it.why == why;
        if !self.unseen.iter().any(is_it) {
            self.misses(what, why);
        }
    }

    /// Returns the parts of the node that are not visible in this program's container, and records each as unseen.
    /// Returns none if this program is not in a container.
    pub(super) fn hidden(&mut self, paths: &Paths) -> BTreeSet<Part> {
        if !self.is_contained() {
            return BTreeSet::new();
        }
        let mut hidden = BTreeSet::new();
        let what = "modules that are not loaded";
        hidden.extend(self.lacks(Part::Modules, what, &["/lib/modules"]));
        let what = "settings of the RDMA subsystem's mode at boot";
        let places = ["/etc/modprobe.d", "/etc/systemd/system"];
        hidden.extend(self.lacks(Part::Boot, what, &places));
        let what = "how udev names RDMA devices";
        let places = ["/etc/udev", "/usr/lib/udev", "/lib/udev"];
        hidden.extend(self.lacks(Part::Naming, what, &places));
        let what = "the network configuration";
        hidden.extend(self.lacks(Part::Chain, what, &[&paths.conf_dir]));
        let what = "the programs of plugins";
        hidden.extend(self.lacks(Part::Programs, what, &paths.bin_dirs));
        let what = "leases of addresses";
        hidden.extend(self.lacks(Part::Leases, what, &["/var/lib/cni/networks"]));
        let what = "container runtimes, and the memory that containers can lock";
        let places = [
            "/run/containerd",
            "/run/crio",
            "/run/k3s",
            "/run/cri-dockerd.sock",
        ];
        hidden.extend(self.lacks(Part::Runtimes, what, &places));
        hidden
    }

    /// Returns `part` if none of its `places` exists, and records it as unseen under the name `what`.
    fn lacks(&mut self, part: Part, what: &str, places: &[impl AsRef<Path>]) -> Option<Part> {
        if places.iter().any(|place| self.has(place)) {
            return None;
        }
        let names = places.iter().map(|it| it.as_ref().display().to_string());
        let why = match names.collect::<Vec<_>>().as_slice() {
            [place] => format!("this container does not have {place}"),
            places => format!("this container has none of {}", places.join(", ")),
        };
        self.misses(what, format!("{NOT_MOUNTED}: {why}"));
        Some(part)
    }

    /// Returns true if this program is in a container, such as the DaemonSet's. In a container, process 1 usually has
    /// the same executable file as this program. With `hostPID`, process 1 is the node's: then its root differs from
    /// this program's root, or the kernel denies root access to it. On the node itself, root has this access.
    fn is_contained(&self) -> bool {
        let file = |path: &str| fs::metadata(path).map(|it| (it.dev(), it.ino()));
        let own = |name: &str| file(&format!("/proc/self/{name}")).ok();
        self.root == Path::new("/")
            && match (file("/proc/1/exe"), file("/proc/1/root/")) {
                (Ok(program), Ok(root)) => {
                    own("exe") == Some(program) || own("root/") != Some(root)
                }
                (Err(error), _) | (_, Err(error)) => {
                    error.kind() == io::ErrorKind::PermissionDenied && geteuid().is_root()
                }
            }
    }

    /// Returns true if the node may have files that this program cannot see.
    pub(super) fn is_partial(&self) -> bool {
        self.root != Path::new("/") || self.is_contained()
    }

    /// Records the host's netdevs and RDMA devices as unseen if this program is not in the network namespace of process
    /// 1, which is the host's.
    pub(super) fn namespace(&mut self) {
        let host = fs::read_link(self.path("/proc/1/ns/net"));
        let own = fs::read_link("/proc/self/ns/net");
        if let (Ok(host), Ok(own)) = (host, own)
            && host != own
        {
            self.misses("the host's netdevs and RDMA devices", ANOTHER_NETNS);
        }
    }

    /// Returns the text of the host's file at `path`. `None`: the file does not exist, or cannot be read.
    pub(super) fn text(&mut self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let read = state_file::read_linked(&self.path(path));
        self.there(path, read.map(lossy))
    }

    /// Returns the text like [`Self::text`], but records a link as unseen, because a link in a directory of leases is
    /// hostile or a mistake.
    pub(super) fn state_text(&mut self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        let read = state_file::read(&self.path(path));
        self.there(path, read.map(lossy))
    }

    /// Returns the sorted names in the host's directory. `None`: the directory does not exist, or cannot be read.
    pub(super) fn names(&mut self, directory: impl AsRef<Path>) -> Option<Vec<String>> {
        let directory = directory.as_ref();
        let read = fs::read_dir(self.path(directory)).and_then(|entries| {
            let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
            names.collect::<io::Result<Vec<_>>>()
        });
        let mut names = self.there(directory, read)?;
        names.sort();
        Some(names)
    }

    /// Returns the target of the host's link at `path`, if the target is absolute. Otherwise returns `path`.
    pub(super) fn target(&self, path: PathBuf) -> PathBuf {
        match fs::read_link(self.path(&path)) {
            Ok(target) if target.is_absolute() => target,
            _ => path,
        }
    }

    /// Returns true if the host has `path`.
    pub(super) fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Returns true if the host's `path` is a link whose target this program cannot see. There are two reasons: a
    /// container has only the mounted parts of the host, and below another root an absolute target is outside this
    /// root.
    pub(super) fn leads_out(&self, path: impl AsRef<Path>) -> bool {
        let path = self.path(path);
        let leads_out = || match self.root == Path::new("/") {
            true => self.is_contained(),
            false => fs::read_link(&path).is_ok_and(|target| target.is_absolute()),
        };
        path.is_symlink() && !path.exists() && leads_out()
    }

    /// Returns the error if the kernel denies this program to read the host's file at `path`.
    pub(super) fn denial(&self, path: &Path) -> Option<io::Error> {
        let error = state_file::read_linked(&self.path(path)).err()?;
        (error.kind() == io::ErrorKind::PermissionDenied).then_some(error)
    }

    fn there<T>(&mut self, path: &Path, read: io::Result<T>) -> Option<T> {
        match read {
            Err(error) if is_absent(&error) => None,
            read => self.keep(&path.display().to_string(), read),
        }
    }
}

/// Returns true if this thread has the capability CAP_DAC_OVERRIDE, by which the runtime can use files of any mode and
/// owner. The root user of a container can lack the capability.
pub(super) fn overrides_modes() -> bool {
    let set = capabilities::effective().ok().flatten();
    set.is_some_and(|set| set & 1 << CAP_DAC_OVERRIDE != 0)
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns true if `error` means that a file does not exist.
pub(super) fn is_absent(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_normal_and_an_unreadable_one_is_noted() {
        let root = tempfile::tempdir().expect("a directory");
        fs::write(root.path().join("b"), "text").expect("written");
        fs::create_dir(root.path().join("a")).expect("a directory");
        let mut view = View::new(root.path());
        assert_eq!(view.text("/none"), None);
        assert_eq!(view.names("/none"), None);
        assert_eq!(view.text("/b/none"), None);
        assert_eq!(view.unseen, []);
        assert_eq!(view.text("/b").as_deref(), Some("text"));
        let names = ["a", "b"].map(str::to_owned).to_vec();
        assert_eq!(view.names("/"), Some(names));
        // a directory cannot be read as text
        assert_eq!(view.text("/a"), None);
        assert_eq!(view.unseen.len(), 1);
        assert_eq!(view.unseen[0].what, "/a");
    }

    #[test]
    fn a_hidden_part_names_all_its_places() {
        let root = tempfile::tempdir().expect("a directory");
        fs::create_dir(root.path().join("c")).expect("a directory");
        let mut view = View::new(root.path());
        assert_eq!(view.lacks(Part::Boot, "c", &["/a", "/c"]), None);
        for (places, why) in [
            (&["/a"][..], "this container does not have /a"),
            (&["/a", "/b"], "this container has none of /a, /b"),
        ] {
            assert_eq!(view.lacks(Part::Boot, "it", places), Some(Part::Boot));
            let unseen = view.unseen.pop().expect("recorded");
            assert_eq!(unseen.why, format!("{NOT_MOUNTED}: {why}"));
            assert_eq!(view.unseen, []);
        }
    }

    #[test]
    fn another_root_is_not_left_by_var_run() {
        let view = View::new(Path::new("/host"));
        assert_eq!(
            view.path("/var/run/netns/a"),
            Path::new("/host/run/netns/a")
        );
        assert_eq!(view.path("/etc/cni"), Path::new("/host/etc/cni"));
        let view = View::new(Path::new("/"));
        assert_eq!(view.path("/var/run/netns/a"), Path::new("/var/run/netns/a"));
    }
}
