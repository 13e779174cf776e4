// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin probe`: asks the daemon of this container, and ends with 0 if it says yes.

use clap::{Args, ValueEnum};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

/// For the whole answer, by default; kubelet's own limit may be shorter.
const LIMIT: Duration = Duration::from_secs(5);

/// `probe`
#[derive(Args, Clone, Debug)]
pub struct Probe {
    /// What is asked
    pub question: Question,
    /// The daemon's --probe-socket
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// Whether kubelet has its lists, and the runtime would call rdma-cni where it is to
    Ready,
    /// Whether it need not be started anew
    Live,
}

/// The answer is no.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// There is no answer.
    #[error("no answer at {socket:?}: {source}")]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What the daemon says.
    #[error("{0}")]
    No(String),
}

/// Asks, and prints the answer.
///
/// # Errors
/// It is no, or there is none.
pub fn ask(probe: &Probe) -> Result<(), ProbeError> {
    let path = match probe.question {
        Question::Ready => "/readyz",
        Question::Live => "/healthz",
    };
    let answer = get(probe, path).map_err(|source| ProbeError::Silent {
        socket: probe.socket.clone(),
        source,
    })?;
    let (head, words) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("200") => {
            print!("{words}");
            Ok(())
        }
        _ => Err(ProbeError::No(words.trim_end().to_owned())),
    }
}

fn get(probe: &Probe, path: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(&probe.socket)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
