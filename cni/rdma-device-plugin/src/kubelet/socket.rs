//! A Unix socket of ours in one of kubelet's directories.

use std::{
    convert::Infallible,
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::mpsc,
};

/// Longest path that `sockaddr_un` takes, its final zero left out (`unix(7)`).
const LONGEST_PATH: usize = 107;

/// How long a socket rests that cannot take a connection: there are no file descriptors left.
const AFTER_AN_ERROR: Duration = Duration::from_millis(200);

/// A connection, in the form in which a server takes them.
pub type Connection = Result<UnixStream, Infallible>;

/// Which file is at a path: a new socket at an old path has another one. The time is that of the
/// last change of content, which for a socket is when it was made; inode numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

impl Identity {
    /// That of the socket at `path`; none: there is none.
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

/// The file name of a resource's socket in `directory`: unique to this program, and never two
/// resources' own. A resource's name has one `/`, and no `_` before it.
///
/// A name that is too long for a socket there ends in a number made of all of it.
pub fn file_name(directory: &Path, resource: &str) -> String {
    let name = |resource: &str| format!("rdma-device-plugin-{resource}.sock");
    let flat = resource.replace('/', "_");
    let whole = name(&flat);
    // a separator, and the dot of the hidden name
    let length = directory.as_os_str().len() + 2 + whole.len();
    let Some(excess @ 1..) = length.checked_sub(LONGEST_PATH) else {
        return whole;
    };
    let mut hasher = DefaultHasher::new();
    flat.hash(&mut hasher);
    let number = format!("~{:016x}", hasher.finish());
    let kept = flat.len().saturating_sub(excess + number.len());
    // resources' names are ASCII
    let front = flat.get(..kept).unwrap_or_default();
    name(&format!("{front}{number}"))
}

/// A socket's file; it goes with this value, if it still is the same one.
#[derive(Debug)]
pub struct Seat {
    path: PathBuf,
    identity: Option<Identity>,
}

/// Listens at `path`. What is there is replaced: a socket of that name is that of a daemon that
/// was here before.
///
/// The socket is made under a hidden name, which kubelet passes over, and renamed: whoever sees
/// it can connect to it.
///
/// # Errors
/// No directory, no permission, or a path that is too long for a socket.
pub fn bind(path: &Path) -> io::Result<(Seat, UnixListener)> {
    let name = path.file_name().unwrap_or_default();
    let mut hidden = OsString::from(".");
    hidden.push(name);
    let hidden = path.with_file_name(hidden);
    if hidden.as_os_str().len() > LONGEST_PATH {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a socket's path has at most {} characters",
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
    let seat = Seat {
        path: path.to_owned(),
        identity,
    };
    Ok((seat, listener))
}

/// Hands connections on, as long as somebody takes them.
pub async fn accept(listener: UnixListener, connections: mpsc::Sender<Connection>) {
    while !connections.is_closed() {
        match listener.accept().await {
            Ok((connection, _)) => {
                let _ = connections.send(Ok(connection)).await;
            }
            Err(error) => {
                log::warn!("cannot take a connection: {error}");
                tokio::time::sleep(AFTER_AN_ERROR).await;
            }
        }
    }
}

impl Seat {
    /// What is at the path now.
    pub fn place(&self) -> Place {
        match Identity::of(&self.path) {
            None => Place::Empty,
            found if found == self.identity => Place::Ours,
            Some(_) => Place::Taken,
        }
    }
}

/// What is at a socket's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The socket.
    Ours,
    /// Nothing: kubelet removes all sockets when it starts.
    Empty,
    /// Another program's socket.
    Taken,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.place() == Place::Ours
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
    async fn only_its_own_file_goes_with_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.sock");
        let (first, _listener) = bind(&path).expect("bound");
        assert_eq!(first.place(), Place::Ours);
        fs::remove_file(&path).expect("removed");
        assert_eq!(first.place(), Place::Empty);
        let (second, _other) = bind(&path).expect("bound");
        assert_eq!(first.place(), Place::Taken);
        drop(first);
        assert_eq!(second.place(), Place::Ours);
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_path_that_is_too_long_is_an_error_in_words() {
        let path = Path::new("/tmp").join("a".repeat(200));
        let error = bind(&path).expect_err("too long");
        assert!(error.to_string().contains("106"), "{error}");
    }

    #[test]
    fn two_resources_have_two_sockets() {
        let directory = Path::new("/var/lib/kubelet/device-plugins");
        let name = |resource: &str| file_name(directory, resource);
        assert_eq!(name("rdma/hca"), "rdma-device-plugin-rdma_hca.sock");
        assert_ne!(name("rdma/a_b"), name("rdma.a/b"));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_longest_names_of_resources_have_sockets() {
        let root = tempfile::tempdir().expect("a directory");
        let directory = root.path().join("kubelet/plugins_registry");
        fs::create_dir_all(&directory).expect("made");
        let mut seats = vec![];
        for length in 1..=244 {
            for last in ["a", "b"] {
                let resource = format!("{}/{}{last}", "x".repeat(length), "y".repeat(62));
                let path = directory.join(file_name(&directory, &resource));
                assert!(!path.exists(), "{resource} has another one's");
                seats.push(bind(&path).expect("bound"));
            }
        }
        let names = fs::read_dir(&directory).expect("a directory").flatten();
        let lengths = names.map(|name| name.path().as_os_str().len());
        assert_eq!(lengths.max(), Some(LONGEST_PATH - 1));
    }
}
