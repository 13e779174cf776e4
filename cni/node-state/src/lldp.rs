// SPDX-License-Identifier: Apache-2.0
//! Observes the switches of the node's NICs ([`lldp`](mod@::lldp)), and sends each change as a signal. No switch is
//! known while the configuration has no `lldp`.

use crate::{
    log_once::LogOnce,
    node::{Node, Signal},
    sources::{readable, register},
    watch::{Watch, until},
};
use ::lldp::{Listener, Neighbour, Switches, Table, neighbours};
use cni_protocol::state_file;
use daemon_conf::Lldp;
use rdma_netns::Inventory;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::{
    io::unix::AsyncFd,
    sync::{mpsc, watch},
};

/// Minimum time between an update of the table and the next update because of frames or a changed file. Many frames or
/// changes would otherwise keep the daemon busy.
const APART: Duration = Duration::from_secs(2);

/// Longest time between two updates of the table. An update also tries again to listen to all netdevs.
const AGAIN: Duration = Duration::from_secs(30);

enum Source {
    Off,
    Listen(AsyncFd<Listener>),
    File(Box<FileSource>),
}

struct FileSource {
    path: PathBuf,
    watch: Watch,
    /// Neighbours in the last readable content of the file, and the time of this content. `None`: the daemon has not
    /// yet read any content. Until their TTL ends, it keeps the neighbours that an earlier daemon saved.
    content: Option<(Vec<(String, Neighbour)>, SystemTime)>,
}

/// Observes the switches until the sender of `node` or the receiver of `signals` is dropped.
pub async fn follow(mut node: watch::Receiver<Arc<Node>>, signals: mpsc::Sender<Signal>) {
    let first = node.borrow().clone();
    let mut sent = first.switches.clone();
    let mut table = Table::restored(&sent, Instant::now());
    let mut conf = first.conf.lldp.clone();
    let mut source = Source::open(conf.as_ref());
    let mut reported = LogOnce::default();
    loop {
        let now = Instant::now();
        let seen = node.borrow_and_update().clone();
        if seen.conf.lldp != conf {
            conf.clone_from(&seen.conf.lldp);
            source = Source::open(conf.as_ref());
        }
        let failed = source.update(&mut table, &seen.inventory, now).await;
        match failed {
            Some(failed) if reported.is_news(&failed) => log::warn!("{failed}"),
            Some(_) => {}
            None => drop(reported.ends()),
        }
        let switches = table.switches();
        if switches != *sent {
            log_changes(&sent, &switches);
            sent = Arc::new(switches);
            if signals.send(Signal::Switches(sent.clone())).await.is_err() {
                return;
            }
        }
        let again = conf.as_ref().map(|_| now + AGAIN);
        let deadline = table.deadline().into_iter().chain(again).min();
        tokio::select! {
            changed = node.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = until(deadline.map(Into::into)) => {}
            () = source.ready(now + APART) => {}
        }
    }
}

impl Source {
    fn open(conf: Option<&Lldp>) -> Self {
        match conf {
            None => Self::Off,
            Some(Lldp::File(path)) => Self::File(Box::new(FileSource {
                watch: Watch::new(vec![path.parent().unwrap_or(path).to_owned()]),
                path: path.clone(),
                content: None,
            })),
            Some(Lldp::Listen) => match Listener::new().and_then(register) {
                Ok(listener) => Self::Listen(listener),
                Err(error) => {
                    log::error!(
                        "cannot listen to LLDP: {error}; the daemon tries again only when it restarts or lldp changes"
                    );
                    Self::Off
                }
            },
        }
    }

    /// Waits until frames arrive or the file changes. Returns at `earliest` or later, and never for `Off`.
    async fn ready(&mut self, earliest: Instant) {
        if let Self::Off = self {
            return std::future::pending().await;
        }
        until(Some(earliest.into())).await;
        match self {
            Self::Off => {}
            Self::File(file) => file.watch.changed().await,
            Self::Listen(listener) => {
                if let Err(error) = readable(Some(listener)).await {
                    log::error!("cannot wait for LLDP frames: {error}");
                    std::future::pending().await
                }
            }
        }
    }

    /// Updates the table. Returns a reason if neighbours may be missing from the table.
    async fn update(
        &mut self,
        table: &mut Table,
        inventory: &Inventory,
        now: Instant,
    ) -> Option<String> {
        table.follow(inventory, now);
        let failed = match self {
            Self::Off => {
                *table = Table::default();
                None
            }
            Self::Listen(listener) => {
                let listener = listener.get_mut();
                let failed = listener.follow(&table.netdevs()).into_iter().next();
                for (netdev, neighbour) in listener.receive() {
                    table.receive(&netdev, neighbour, now);
                }
                failed.map(|(netdev, error)| format!("{netdev}: cannot listen to LLDP: {error}"))
            }
            Self::File(file) => {
                let failed = file.read().await.err();
                if let Some((all, written)) = &file.content {
                    table.take(all, written.elapsed().unwrap_or_default(), now);
                }
                failed.map(|error| {
                    format!(
                        "{:?}: cannot read LLDP neighbours: {error}; the daemon keeps the last LLDP neighbours",
                        file.path
                    )
                })
            }
        };
        table.expire(now);
        failed
    }
}

impl FileSource {
    async fn read(&mut self) -> Result<(), String> {
        let path = self.path.clone();
        let read = tokio::task::spawn_blocking(move || content(&path)).await;
        self.content = Some(read.map_err(|error| error.to_string())??);
        Ok(())
    }
}

/// Reads the file with the output of lldpd. Also returns the file's modification time.
fn content(path: &Path) -> Result<(Vec<(String, Neighbour)>, SystemTime), String> {
    let text = state_file::read_linked(path).map_err(|error| error.to_string())?;
    let written = path.metadata().and_then(|it| it.modified());
    let text = str::from_utf8(&text).map_err(|error| error.to_string())?;
    Ok((
        neighbours(text)?,
        written.map_err(|error| error.to_string())?,
    ))
}

fn log_changes(before: &Switches, now: &Switches) {
    for (address, seen) in &now.0 {
        let former = before.0.get(address).map(|it| &it.neighbour);
        let (switch, port) = (seen.neighbour.switch(), seen.neighbour.port());
        if former.map(|it| (it.switch(), it.port())) != Some((switch, port)) {
            log::info!("{}: the switch is {switch}, its port {port}", seen.netdev);
        }
    }
    for (address, seen) in &before.0 {
        if !now.0.contains_key(address) {
            log::info!("{}: the switch is no longer known", seen.netdev);
        }
    }
}
