// SPDX-License-Identifier: Apache-2.0
//! The HTTP server: `/`, `/metrics`, `/healthz`, `/readyz`, at an address; the last two at a socket too.

use super::{Metrics, Sources, collect::Collector, page::Page, text};
use crate::{
    kubelet::socket::{BoundSocket, bind},
    probes::{Probes, Stage},
};
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
    io,
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

/// Connections at one time. The next one takes the place of the oldest that is not being answered.
const CONNECTIONS: usize = 64;
/// For a request's head to come.
const HEAD: Duration = Duration::from_secs(3);
/// For a whole connection: it is for one request.
const CONNECTION: Duration = Duration::from_secs(10);
/// After a connection could not be taken, for want of descriptors.
const PAUSE: Duration = Duration::from_millis(200);

/// The server; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: AbortHandle,
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves `/`, `/metrics`, `/healthz` and `/readyz` on `address`, from within a tokio runtime.
///
/// An error where nothing can listen there.
pub async fn serve(address: SocketAddr, metrics: Metrics, sources: Sources) -> io::Result<Server> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let view = sources.view.clone();
    let stage = move || Stage::Serving(Box::new(view()));
    let site = Site {
        probes: Probes::new(metrics.clone(), &sources.kubelet_dir, stage),
        figures: Some((metrics, Collector::new(sources))),
    };
    let task = tokio::spawn(accept(Listener::Address(listener), site)).abort_handle();
    log::info!("metrics are at http://{address}/metrics");
    Ok(Server { address, task })
}

/// Serves `/healthz` and `/readyz` at a socket, for ever. A socket that is there was that of a daemon
/// before, in the same place.
///
/// # Errors
/// There can be no socket.
pub fn serve_probes(
    socket: &Path,
    probes: Probes,
) -> io::Result<impl Future<Output = ()> + Send + use<>> {
    let (socket, listener) = bind(socket)?;
    let site = Site {
        probes,
        figures: None,
    };
    let listener = Listener::Socket {
        listener,
        _socket: socket,
    };
    Ok(accept(listener, site))
}

/// The same, as soon as something can listen there: it is tried every `again`, and said once.
pub async fn serve_when_free(
    address: SocketAddr,
    metrics: Metrics,
    sources: Sources,
    again: Duration,
) -> Server {
    let mut told = false;
    loop {
        match serve(address, metrics.clone(), sources.clone()).await {
            Ok(server) => return server,
            Err(error) if !told => log::error!(
                "no metrics: cannot listen at {address}: {error}; trying again every {again:?} \
                 (--metrics-address says where)"
            ),
            Err(_) => {}
        }
        told = true;
        tokio::time::sleep(again).await;
    }
}

/// Where requests come from.
enum Listener {
    Address(TcpListener),
    /// Whose file goes with it.
    Socket {
        listener: UnixListener,
        _socket: BoundSocket,
    },
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Address(listener) => Box::new(listener.accept().await?.0),
            Self::Socket { listener, .. } => Box::new(listener.accept().await?.0),
        })
    }
}

/// A connection.
struct Connection {
    task: AbortHandle,
    /// Whether its request has come, and the answer is being made.
    is_answered: Arc<AtomicBool>,
}

/// All connections, in the order in which they came. They end when this is dropped.
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
                log::debug!("an HTTP connection took longer than {CONNECTION:?}");
            }
        });
        self.all.push(Connection { task, is_answered });
    }

    /// Has room for one more: the oldest that is not being answered ends. Where all are, the first is waited for.
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
                log::warn!("metrics: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Answers the request of `stream`; `is_answered` while it does.
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

/// What can be asked for.
struct Site {
    probes: Probes,
    /// None where only kubelet asks.
    figures: Option<(Metrics, Collector)>,
}

type Answer = Response<Full<Bytes>>;

const PLAIN: &str = "text/plain; charset=utf-8";

const HTML: &str = "text/html; charset=utf-8";

/// The page loads nothing and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

impl Site {
    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refused = answer(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "GET or HEAD\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            refused.headers_mut().insert(ALLOW, allowed);
            return refused;
        }
        match (request.uri().path(), &self.figures) {
            ("/", Some((metrics, collector))) => {
                let (snapshot, rails) = tokio::join!(collector.collect(), collector.rails());
                let probes = [self.probes.live(), self.probes.ready()];
                let page = Page::new(collector.node(), metrics, &snapshot, &rails, probes);
                let mut page = answer(StatusCode::OK, HTML, page.render());
                // it is the node as it was at the request
                for (name, value) in [
                    (CONTENT_SECURITY_POLICY, POLICY),
                    (CACHE_CONTROL, "no-store"),
                ] {
                    page.headers_mut()
                        .insert(name, HeaderValue::from_static(value));
                }
                page
            }
            ("/metrics", Some((metrics, collector))) => {
                let snapshot = collector.collect().await;
                match text::render(metrics, &snapshot) {
                    Ok(text) => answer(StatusCode::OK, text::CONTENT_TYPE, text),
                    Err(error) => {
                        let words = format!("the figures cannot be written: {error}\n");
                        answer(StatusCode::INTERNAL_SERVER_ERROR, PLAIN, words)
                    }
                }
            }
            ("/healthz", _) => told(self.probes.live()),
            ("/readyz", _) => told(self.probes.ready()),
            _ => {
                let paths = "/, /metrics, /healthz or /readyz\n";
                answer(StatusCode::NOT_FOUND, PLAIN, paths)
            }
        }
    }
}

fn told(words: Result<String, String>) -> Answer {
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
