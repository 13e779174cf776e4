// SPDX-License-Identifier: Apache-2.0
//! A Unix socket of this program in one of kubelet's directories.

use cni_protocol::state_file;
use std::{
    convert::Infallible,
    ffi::OsString,
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::JoinSet,
};

/// Longest path of a Unix socket (`sockaddr_un`), without the final zero (`unix(7)`).
pub const LONGEST_PATH: usize = 107;

/// Delay after a failed accept, for example because no file descriptor is free.
const AFTER_AN_ERROR: Duration = Duration::from_millis(200);

/// A connection in the form that tonic's server needs.
pub type Connection = Result<UnixStream, Infallible>;

/// Identity of the socket at a path. A new socket at the same path has another identity. The identity includes the
/// modification time, because the kernel reuses inode numbers. The modification time of a socket is the time when it
/// was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

impl Identity {
    /// Returns the identity of the socket at `path`. `None`: there is no socket.
    pub fn of(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        let socket = found.file_type().is_socket();
        socket.then(|| Self {
            device: found.dev(),
            inode: found.ino(),
            made: (found.mtime(), found.mtime_nsec()),
        })
    }
}

/// Prefix and suffix of the file names of all sockets of this program.
const AFFIXES: (&str, &str) = ("rdma-device-plugin-", ".sock");

/// Separator between the names of resource and daemon in a socket's file name. No resource's name contains this
/// character.
const SEPARATOR: char = '~';

/// Separator in the file name of a driver's registration socket. In a call, kubelet uses the socket's path as the host,
/// with escaped slashes (`encodeAuthority` in grpc-go). The crate `http` rejects escaped slashes in a host, but ignores
/// the part before an `@`.
const REGISTRATION_SEPARATOR: char = '@';

/// First part of the file name of a driver's service socket. It is short, because the path also contains the driver's
/// name, of at most 63 characters: with kubelet's usual directory, the longest path has [`LONGEST_PATH`] characters.
const DRIVER: &str = "dra";

/// Returns the file name of a driver's service socket, for the daemon `owner`.
pub fn driver_name(owner: &str) -> String {
    format!("{DRIVER}{SEPARATOR}{owner}{}", AFFIXES.1)
}

/// Returns the file name of the registration socket of `driver` in `directory`, for the daemon `owner`.
pub fn registration_name(directory: &Path, driver: &str, owner: &str) -> String {
    let name = file_name(directory, driver, owner);
    match name.rsplit_once(SEPARATOR) {
        Some((driver, owner)) => format!("{driver}{REGISTRATION_SEPARATOR}{owner}"),
        None => name,
    }
}

/// Returns the file name of the socket of `resource` in `directory`, for the daemon `owner`.
///
/// - Each resource has a different file name: a resource's name has one `/`, and no `_` before it.
/// - Two daemons have two different sockets. Kubelet (1.37) distinguishes two plugins of a resource by their sockets.
///   An ending daemon removes only its own socket.
/// - If the path would be too long for a socket, the resource's name is cut, and ends in a hash.
pub fn file_name(directory: &Path, resource: &str, owner: &str) -> String {
    let (prefix, suffix) = AFFIXES;
    let name = |resource: &str| format!("{prefix}{resource}{SEPARATOR}{owner}{suffix}");
    let flat = resource.replace('/', "_");
    let whole = name(&flat);
    // 2: the separator after the directory, and the dot of the hidden name
    let length = directory.as_os_str().len() + 2 + whole.len();
    let excess = length.saturating_sub(LONGEST_PATH);
    name(&state_file::shortened(
        &flat,
        flat.len().saturating_sub(excess),
    ))
}

/// Removes the sockets of killed daemons in `directory`. `runs` returns true if the daemon with the given name runs.
pub fn remove_stale(directory: &Path, runs: impl Fn(&str) -> bool) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let owner = name
            .trim_start_matches('.')
            .strip_suffix(AFFIXES.1)
            .and_then(|name| name.rsplit_once([SEPARATOR, REGISTRATION_SEPARATOR]))
            .filter(|(front, _)| *front == DRIVER || front.starts_with(AFFIXES.0))
            .map(|(_, owner)| owner.split('-').next().unwrap_or(owner));
        if owner.is_some_and(|owner| !runs(owner))
            && let Err(error) = fs::remove_file(&path)
        {
            log::warn!("cannot remove {path:?}, which a killed daemon left: {error}");
        }
    }
}

/// File of a socket. Dropping this value removes the file if no other program has replaced it.
#[derive(Debug)]
pub struct BoundSocket {
    path: PathBuf,
    identity: Option<Identity>,
}

/// Listens at `path`. Replaces an existing socket. Makes the socket under a hidden name, which kubelet ignores, and
/// then renames it. As soon as kubelet sees the socket, the socket therefore accepts connections.
///
/// # Errors
/// The directory is missing, permission is denied, or the path is too long for a socket.
pub fn bind(path: &Path) -> io::Result<(BoundSocket, UnixListener)> {
    let name = path.file_name().unwrap_or_default();
    let mut hidden = OsString::from(".");
    hidden.push(name);
    let hidden = path.with_file_name(hidden);
    if hidden.as_os_str().len() > LONGEST_PATH {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "the path is longer than the {} characters that a socket's path may have",
                LONGEST_PATH - 1
            ),
        ));
    }
    if Identity::of(&hidden).is_some() {
        fs::remove_file(&hidden)?;
    }
    let listener = UnixListener::bind(&hidden)?;
    let identity = Identity::of(&hidden);
    fs::rename(&hidden, path)?;
    let socket = BoundSocket {
        path: path.to_owned(),
        identity,
    };
    Ok((socket, listener))
}

/// Socket of this program that accepts connections. Dropping this value removes the socket's file, if no other program
/// has replaced it, and then ends the acceptance.
#[derive(Debug)]
pub struct Listening {
    socket: BoundSocket,
    _accepting: JoinSet<()>,
}

/// Listens at `path` like [`bind`], and sends the connections to `connections`.
///
/// # Errors
/// The socket cannot be made.
pub fn listen(path: &Path, connections: &mpsc::Sender<Connection>) -> io::Result<Listening> {
    let (socket, listener) = bind(path)?;
    let mut accepting = JoinSet::new();
    accepting.spawn(accept(listener, connections.clone()));
    Ok(Listening {
        socket,
        _accepting: accepting,
    })
}

impl Listening {
    /// Returns the state of the socket's path.
    pub fn state(&self) -> SocketState {
        self.socket.state()
    }
}

/// Accepts connections and sends them to `connections`. Ends at the next connection after the receiver was dropped.
async fn accept(listener: UnixListener, connections: mpsc::Sender<Connection>) {
    while !connections.is_closed() {
        match listener.accept().await {
            Ok((connection, _)) => {
                let _ = connections.send(Ok(connection)).await;
            }
            Err(error) => {
                log::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(AFTER_AN_ERROR).await;
            }
        }
    }
}

impl BoundSocket {
    /// Returns the state of the path.
    pub fn state(&self) -> SocketState {
        match Identity::of(&self.path) {
            None => SocketState::Empty,
            found if found == self.identity => SocketState::Ours,
            Some(_) => SocketState::Taken,
        }
    }
}

/// State of a socket's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketState {
    /// The socket that this [`BoundSocket`] made.
    Ours,
    /// No socket. Kubelet removes all sockets when it starts.
    Empty,
    /// A socket of another program or daemon.
    Taken,
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if self.state() == SocketState::Ours
            && let Err(error) = fs::remove_file(&self.path)
        {
            log::warn!("cannot remove {:?}: {error}", self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn dropping_a_socket_removes_only_its_own_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.sock");
        let (first, _listener) = bind(&path).expect("bound");
        assert_eq!(first.state(), SocketState::Ours);
        fs::remove_file(&path).expect("removed");
        assert_eq!(first.state(), SocketState::Empty);
        let (second, _other) = bind(&path).expect("bound");
        assert_eq!(first.state(), SocketState::Taken);
        drop(first);
        assert_eq!(second.state(), SocketState::Ours);
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_path_that_is_too_long_is_an_error() {
        let path = Path::new("/tmp").join("a".repeat(200));
        let error = bind(&path).expect_err("too long");
        assert!(error.to_string().contains("106"), "{error}");
    }

    #[test]
    fn two_resources_have_two_sockets() {
        let directory = Path::new("/var/lib/kubelet/device-plugins");
        let name = |resource: &str| file_name(directory, resource, "0a1b2c3d-0");
        assert_eq!(
            name("rdma/hca"),
            "rdma-device-plugin-rdma_hca~0a1b2c3d-0.sock"
        );
        assert_ne!(name("rdma/a_b"), name("rdma.a/b"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn only_sockets_of_killed_daemons_are_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |resource: &str, owner: &str| {
            let name = file_name(directory.path(), resource, owner);
            bind(&directory.path().join(name)).expect("bound")
        };
        let sockets = [at("rdma/hca", "aaaaaaaa-0"), at("rdma/hca", "bbbbbbbb-1")];
        let registration = registration_name(directory.path(), "hca.rdma", "aaaaaaaa");
        assert_eq!(registration, "rdma-device-plugin-hca.rdma@aaaaaaaa.sock");
        let registration = bind(&directory.path().join(registration)).expect("bound");
        let driver = bind(&directory.path().join(driver_name("aaaaaaaa"))).expect("bound");
        for other in ["kubelet.sock", "rdma-device-plugin-rdma_hca.sock"] {
            fs::write(directory.path().join(other), "").expect("written");
        }
        remove_stale(directory.path(), |owner| owner == "bbbbbbbb");
        assert_eq!(sockets[0].0.state(), SocketState::Empty);
        assert_eq!(sockets[1].0.state(), SocketState::Ours);
        assert_eq!(registration.0.state(), SocketState::Empty);
        assert_eq!(driver.0.state(), SocketState::Empty);
        let entries = fs::read_dir(directory.path()).expect("a directory");
        assert_eq!(entries.count(), 3);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_longest_names_of_resources_have_sockets() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("kubelet/device-plugins");
        fs::create_dir_all(&directory).expect("made");
        let mut sockets = vec![];
        for length in 1..=244 {
            for last in ["a", "b"] {
                let resource = format!("{}/{}{last}", "x".repeat(length), "y".repeat(62));
                let path = directory.join(file_name(&directory, &resource, "0a1b2c3d-0"));
                assert!(!path.exists(), "{resource} has another one's");
                sockets.push(bind(&path).expect("bound"));
            }
        }
        let names = fs::read_dir(&directory).expect("a directory").flatten();
        let lengths = names.map(|name| name.path().as_os_str().len());
        assert_eq!(lengths.max(), Some(LONGEST_PATH - 1));
    }
}
