// SPDX-License-Identifier: Apache-2.0
//! `rdma-device-plugin probe`: queries the daemon or fabric watch of this container. The exit code is 0 if the answer
//! is positive.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use http_client::{Bytes, Request, StatusCode, send};
use std::{io, path::PathBuf, time::Duration};
use tokio::{net::UnixStream, time::timeout};

/// Time limit for the answer. Kubelet's own limit may be shorter.
const LIMIT: Duration = Duration::from_secs(5);

/// Largest answer in bytes. The answer may have a sentence for each resource.
const LONGEST: usize = 1024 * 1024;

/// Arguments of `probe`.
#[derive(Args, Clone, Debug)]
pub struct Probe {
    /// Probe to run
    pub question: Question,
    /// The --probe-socket of the daemon or of the fabric watch
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
}

/// Probes of the daemon and of the fabric watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Question {
    /// Daemon: kubelet has its lists and DRA driver and, if chain is configured, the runtime would call rdma-cni.
    /// Fabric watch: it has published its rails and listed its peers
    Ready,
    /// The daemon or the fabric watch needs no restart
    Live,
}

/// Queries the daemon or the fabric watch. Prints a positive answer, and returns a negative answer as the error.
///
/// # Errors
/// The answer is negative or missing.
pub fn ask(probe: &Probe) -> Result<()> {
    let path = match probe.question {
        Question::Ready => "/readyz",
        Question::Live => "/healthz",
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let answer = runtime.and_then(|it| {
        let limited = async { timeout(LIMIT, get(probe, path)).await? };
        it.block_on(limited)
    });
    match answer {
        Ok((StatusCode::OK, words)) => {
            print!("{words}");
            Ok(())
        }
        Ok((_, words)) => bail!("{}", words.trim_end()),
        Err(error) => bail!("no answer at {:?}: {error}", probe.socket),
    }
}

async fn get(probe: &Probe, path: &'static str) -> io::Result<(StatusCode, String)> {
    let stream = UnixStream::connect(&probe.socket).await?;
    let request = Request::get(path).body(Bytes::new());
    let request = request.map_err(io::Error::other)?;
    let response = send(stream, request).await.map_err(io::Error::other)?;
    let status = response.status;
    let words = response.whole(LONGEST).await.map_err(io::Error::other)?;
    Ok((status, String::from_utf8_lossy(&words).into_owned()))
}
