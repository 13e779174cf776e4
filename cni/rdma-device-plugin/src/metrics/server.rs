// SPDX-License-Identifier: Apache-2.0
//! The HTTP server. The daemon's server answers `/`, `/metrics`, `/healthz` and `/readyz` at an address, and only
//! `/healthz` and `/readyz` at a socket. The fabric watch's server answers `/metrics`, `/healthz` and `/readyz` at its
//! address and at its socket.

use super::{Fabric, Metrics, Sources, collect::Collector, page::Page, text};
use crate::{
    kubelet::socket::{BoundSocket, bind},
    probes::{Probes, Stage},
};
use anyhow::anyhow;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    convert::Infallible,
    fmt, io,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    task::{AbortHandle, JoinSet},
};

/// Maximum number of connections. A further connection replaces the oldest connection whose request is not being
/// answered.
const CONNECTIONS: usize = 64;
/// Time limit for receiving the head of a request.
const HEAD: Duration = Duration::from_secs(3);
/// Time limit for a connection. Each connection has one request.
const CONNECTION: Duration = Duration::from_secs(10);
/// Delay after a failed accept, for example because no file descriptor is free.
const PAUSE: Duration = Duration::from_millis(200);

/// Answers `/`, `/metrics`, `/healthz` and `/readyz` on `address`, until the returned future is dropped. Also returns
/// the address with the port.
///
/// # Errors
/// The address cannot be bound.
pub async fn serve(
    address: SocketAddr,
    metrics: Metrics,
    sources: Sources,
) -> io::Result<(SocketAddr, impl Future<Output = ()> + Send + use<>)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let view = sources.view.clone();
    let stage = move || Stage::Serving(view());
    let site = Site::Daemon {
        probes: Probes::new(metrics.clone(), &sources.kubelet_dir, stage),
        figures: Some(Box::new((metrics, Collector::new(sources)))),
    };
    log::info!("metrics are at http://{address}/metrics");
    Ok((address, accept(Listener::Address(listener), site)))
}

/// Answers `/healthz` and `/readyz` at a socket, until the future is dropped. Replaces an existing socket.
///
/// # Errors
/// The socket cannot be made.
pub fn serve_probes(
    socket: &Path,
    probes: Probes,
) -> io::Result<impl Future<Output = ()> + Send + use<>> {
    let site = Site::Daemon {
        probes,
        figures: None,
    };
    Ok(accept(Listener::at(socket)?, site))
}

/// Answers the fabric watch's `/metrics`, `/healthz` and `/readyz` on `address` and at `socket`, until the future is
/// dropped.
///
/// # Errors
/// The address cannot be bound, or the socket cannot be made.
pub async fn serve_fabric(
    address: SocketAddr,
    socket: Option<&Path>,
    fabric: Fabric,
) -> anyhow::Result<impl Future<Output = ()> + Send + use<>> {
    let listen = |path: &Path| {
        let place = path.display();
        Listener::at(path).map_err(|error| {
            anyhow!("cannot listen at {place}: {error}; --probe-socket selects another")
        })
    };
    let socket = socket.map(listen).transpose()?;
    let failed =
        |error| anyhow!("cannot listen at {address}: {error}; --metrics-address selects another");
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    log::info!("metrics are at http://{address}/metrics");
    let listeners = socket.into_iter().chain([Listener::Address(listener)]);
    let serving: Vec<_> = listeners
        .map(|it| accept(it, Site::Fabric(fabric.clone())))
        .collect();
    Ok(async move {
        JoinSet::from_iter(serving).join_all().await;
    })
}

/// Serves like [`serve`] as soon as the address can be bound. Retries at the interval `again`, and logs only the first
/// failure.
pub async fn serve_when_free(
    address: SocketAddr,
    metrics: Metrics,
    sources: Sources,
    again: Duration,
) {
    let mut is_logged = false;
    loop {
        match serve(address, metrics.clone(), sources.clone()).await {
            Ok((_, serving)) => return serving.await,
            Err(error) if !is_logged => log::error!(
                "no metrics: cannot listen at {address}: {error}; trying again every {again:?} \
                 (--metrics-address selects another)"
            ),
            Err(_) => {}
        }
        is_logged = true;
        tokio::time::sleep(again).await;
    }
}

enum Listener {
    Address(TcpListener),
    /// A Unix socket. Dropping this value removes the socket's file.
    Socket {
        listener: UnixListener,
        _socket: BoundSocket,
    },
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Listener {
    fn at(path: &Path) -> io::Result<Self> {
        let (socket, listener) = bind(path)?;
        Ok(Self::Socket {
            listener,
            _socket: socket,
        })
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Address(listener) => Box::new(listener.accept().await?.0),
            Self::Socket { listener, .. } => Box::new(listener.accept().await?.0),
        })
    }
}

struct Connection {
    task: AbortHandle,
    /// True while the server answers the connection's request.
    is_answered: Arc<AtomicBool>,
}

/// Connections in the order of their arrival. Dropping this value closes them.
#[derive(Default)]
struct Connections {
    tasks: JoinSet<()>,
    all: Vec<Connection>,
}

impl Connections {
    fn add(&mut self, stream: Box<dyn Stream>, site: Arc<Site>) {
        let is_answered = Arc::new(AtomicBool::new(false));
        let answers = is_answered.clone();
        let task = self.tasks.spawn(async move {
            let conversation = converse(stream, site, answers);
            if tokio::time::timeout(CONNECTION, conversation)
                .await
                .is_err()
            {
                log::debug!(
                    "metrics: closed an HTTP connection that took longer than {CONNECTION:?}"
                );
            }
        });
        self.all.push(Connection { task, is_answered });
    }

    /// Makes room for another connection if there are [`CONNECTIONS`]: closes the oldest one whose request is not being
    /// answered. If the server is answering the requests of all connections, waits until one connection ends.
    async fn make_room(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        self.all.retain(|it| !it.task.is_finished());
        while self.tasks.len() >= CONNECTIONS {
            let mut idle = self.all.iter();
            let idle = idle.position(|it| !it.is_answered.load(Ordering::Relaxed));
            if let Some(place) = idle {
                self.all.remove(place).task.abort();
            }
            self.tasks.join_next().await;
        }
    }
}

async fn accept(listener: Listener, site: Site) {
    let site = Arc::new(site);
    let mut connections = Connections::default();
    loop {
        match listener.accept().await {
            Ok(stream) => {
                connections.make_room().await;
                connections.add(stream, site.clone());
            }
            Err(error) => {
                log::warn!("metrics: cannot accept a connection: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Answers the request of `stream`. `is_answered` is true while the server answers.
async fn converse(stream: Box<dyn Stream>, site: Arc<Site>, is_answered: Arc<AtomicBool>) {
    let answer = |request: Request<Incoming>| {
        let (site, is_answered) = (site.clone(), is_answered.clone());
        async move {
            is_answered.store(true, Ordering::Relaxed);
            let answer = site.answer(&request).await;
            is_answered.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(answer)
        }
    };
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    if let Err(error) = connection.await {
        log::debug!("an HTTP connection ended: {error}");
    }
}

enum Site {
    Daemon {
        probes: Probes,
        /// Metrics. `None` at the socket for kubelet's probes.
        figures: Option<Box<(Metrics, Collector)>>,
    },
    Fabric(Fabric),
}

type Answer = Response<Full<Bytes>>;

const PLAIN: &str = "text/plain; charset=utf-8";

const HTML: &str = "text/html; charset=utf-8";

/// Content security policy of the page. With it the browser loads nothing and runs no script.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

impl Site {
    fn live(&self) -> Result<String, String> {
        match self {
            Self::Daemon { probes, .. } => probes.live(),
            Self::Fabric(fabric) => fabric.live(),
        }
    }

    fn ready(&self) -> Result<String, String> {
        match self {
            Self::Daemon { probes, .. } => probes.ready(),
            Self::Fabric(fabric) => fabric.ready(),
        }
    }

    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET or HEAD\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            return refused;
        }
        let figures = match self {
            Self::Daemon { figures, .. } => figures.as_deref(),
            Self::Fabric(_) => None,
        };
        match (request.uri().path(), figures) {
            ("/", Some((metrics, collector))) => {
                let (snapshot, rails, fabric) =
                    tokio::join!(collector.collect(), collector.rails(), collector.fabric());
                let probes = [self.live(), self.ready()];
                let node = &collector.sources.node;
                let page = Page::new(node, metrics, &snapshot, &rails, probes, fabric);
                let mut page = answer(StatusCode::OK, HTML, page.render());
                // forbid caching, because the page shows the node at the time of the request
                let headers = page.headers_mut();
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
                headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
                page
            }
            ("/metrics", Some((metrics, collector))) => {
                let snapshot = collector.collect().await;
                metrics_answer(text::render(metrics, &snapshot))
            }
            ("/metrics", None) if let Self::Fabric(fabric) = self => {
                metrics_answer(fabric.render())
            }
            ("/healthz", _) => probe_answer(self.live()),
            ("/readyz", _) => probe_answer(self.ready()),
            _ => {
                let paths = "/, /metrics, /healthz or /readyz\n";
                answer(StatusCode::NOT_FOUND, PLAIN, paths)
            }
        }
    }
}

fn metrics_answer(text: Result<String, fmt::Error>) -> Answer {
    match text {
        Ok(text) => answer(StatusCode::OK, text::CONTENT_TYPE, text),
        Err(error) => {
            let words = format!("cannot encode the metrics: {error}\n");
            answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, words)
        }
    }
}

fn probe_answer(words: Result<String, String>) -> Answer {
    match words {
        Ok(words) => answer(StatusCode::OK, PLAIN, words),
        Err(words) => answer(StatusCode::SERVICE_UNAVAILABLE, PLAIN, words),
    }
}

fn answer(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static(kind);
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
