// SPDX-License-Identifier: Apache-2.0
//! One request to the API server.

use crate::{
    access::{Access, AccessError, content},
    watch::{self, Watch},
};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use nix::sys::socket::{
    setsockopt,
    sockopt::{KeepAlive, TcpKeepCount, TcpKeepIdle, TcpKeepInterval},
};
use serde_json::Value;
use std::{fmt, io, pin::pin, sync::Arc, time::Duration};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

/// An object has 1.5 MiB at most: that is what etcd takes.
pub(crate) const LONGEST: usize = 2 * 1024 * 1024;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A patch that merges the lists of Kubernetes' types by their keys: of a node's conditions, by their type.
const STRATEGIC_MERGE: HeaderValue =
    HeaderValue::from_static("application/strategic-merge-patch+json");

/// Asks the API server.
#[derive(Clone, Debug)]
pub struct Client {
    access: Access,
    agent: HeaderValue,
    limit: Duration,
}

/// There is no answer, or a refusal.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A pod without a token.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Nobody answers, or not as the API server does.
    #[error("the API server at {authority} does not answer: {source}")]
    Unreachable {
        /// `10.96.0.1:443`
        authority: String,
        /// Why.
        source: io::Error,
    },
    /// It does not want to.
    #[error("the API server refuses: {0}")]
    Refused(Refusal),
    /// What it says is not understood.
    #[error("the API server's answer cannot be read: {0}")]
    Garbage(String),
}

/// A `Status` of the API server's that is no success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP's number.
    pub code: u16,
    /// `NotFound`, `Conflict`, `Forbidden`…; empty: another server between gave the answer.
    pub reason: String,
    /// In words.
    pub message: String,
}

/// `pods "a" not found (404 NotFound)`
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code,
            reason,
            message,
        } = self;
        match (message.is_empty(), reason.is_empty()) {
            (true, true) => write!(f, "{code}"),
            (true, false) => write!(f, "{code} {reason}"),
            (false, true) => write!(f, "{message} ({code})"),
            (false, false) => write!(f, "{message} ({code} {reason})"),
        }
    }
}

impl RequestError {
    /// HTTP's number of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }
}

impl Client {
    /// One that calls itself `agent`, with `limit` for each request.
    pub fn new(access: Access, agent: &'static str, limit: Duration) -> Self {
        Self {
            access,
            agent: HeaderValue::from_static(agent),
            limit,
        }
    }

    /// Who asks, and where.
    pub fn access(&self) -> &Access {
        &self.access
    }

    /// Does `method` at `path`, which begins with `/api` and may have a query; the object that comes
    /// back. The body of a PATCH is a strategic merge patch.
    ///
    /// # Errors
    /// No token; no answer in time; a refusal.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, RequestError> {
        let end = Instant::now() + self.limit;
        let request = self.request(method, path, body)?;
        let config = self.config()?;
        let whole = async {
            let stream = self.connect(config).await?;
            converse(request, stream).await
        };
        let (status, text) = self.until(end, whole).await?;
        read(status, &text)
    }

    /// Follows what `path` tells, which asks for a watch. Whoever answers is bounded in time, but not what is told
    /// then; an API server that is gone without a word is noticed within a minute.
    ///
    /// # Errors
    /// No token; no answer in time; a refusal.
    pub async fn watch(&self, path: &str) -> Result<Watch, RequestError> {
        let end = Instant::now() + self.limit;
        let request = self.request(Method::GET, path, None)?;
        let config = self.config()?;
        let opened = async {
            let stream = self.connect(config).await?;
            keep_alive(stream.get_ref().0)?;
            watch::open(request, stream).await
        };
        let (status, watch) = self.until(end, opened).await?;
        if status.is_success() {
            return Ok(watch);
        }
        let told = self.until(end, watch.rest()).await?;
        match read(status, &told) {
            Err(refused) => Err(refused),
            Ok(_) => Err(RequestError::Garbage(format!("{status} for a watch"))),
        }
    }

    /// What the API server is asked for until `end`, at most.
    async fn until<T>(
        &self,
        end: Instant,
        asked: impl Future<Output = io::Result<T>>,
    ) -> Result<T, RequestError> {
        let answer = timeout_at(end, asked).await.unwrap_or_else(|_| {
            let words = format!("not within {:?}", self.limit);
            Err(io::Error::new(io::ErrorKind::TimedOut, words))
        });
        answer.map_err(|source| RequestError::Unreachable {
            authority: self.access.authority(),
            source,
        })
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Request<Full<Bytes>>, RequestError> {
        let mut token = HeaderValue::try_from(format!("Bearer {}", self.access.token()?))
            .map_err(|error| RequestError::Garbage(error.to_string()))?;
        token.set_sensitive(true);
        let text = body.map(Value::to_string).unwrap_or_default();
        let content_type = match method {
            Method::PATCH => STRATEGIC_MERGE,
            _ => JSON,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.access.authority())
            .header(AUTHORIZATION, token)
            .header(USER_AGENT, self.agent.clone())
            .header(ACCEPT, JSON)
            .header(CONTENT_TYPE, content_type)
            .header(CONNECTION, "close")
            .body(Full::from(text));
        request.map_err(|error| RequestError::Garbage(format!("{path}: {error}")))
    }

    /// Made anew each time: a CA is exchanged, too, and a request is rare.
    fn config(&self) -> Result<ClientConfig, RequestError> {
        let (text, file) = self.access.certificates()?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let certificate = certificate
                .map_err(|_| content(file.clone(), "has a certificate that cannot be read"))?;
            // one of several that is of no use does no harm
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            return Err(content(file, "has no certificate of a CA").into());
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| RequestError::Garbage(error.to_string()))?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }

    async fn connect(&self, config: ClientConfig) -> io::Result<TlsStream<TcpStream>> {
        let Access { host, port, .. } = &self.access;
        let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
        let stream = TcpStream::connect((&**host, *port)).await?;
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }
}

/// Probes a connection on which nothing comes: after 30 s, every 10 s, three times.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, KeepAlive, &true)?;
    setsockopt(stream, TcpKeepIdle, &30)?;
    setsockopt(stream, TcpKeepInterval, &10)?;
    setsockopt(stream, TcpKeepCount, &3)?;
    Ok(())
}

async fn converse(
    request: Request<Full<Bytes>>,
    stream: TlsStream<TcpStream>,
) -> io::Result<(StatusCode, Bytes)> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    let answer = async move {
        let response = sender.send_request(request).await;
        let response = response.map_err(io::Error::other)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => io::Error::other(format!("more than {LONGEST} bytes")),
            false => io::Error::other(error),
        })?;
        Ok((status, body.to_bytes()))
    };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        // what has come by now is all that comes
        _ = &mut connection => answer.await,
    }
}

/// What an answer of the API server with this status and text comes to.
///
/// # Errors
/// It is a refusal, or no JSON.
pub fn read(status: StatusCode, text: &[u8]) -> Result<Value, RequestError> {
    let object = serde_json::from_slice::<Value>(text);
    if status.is_success() {
        return object.map_err(|error| RequestError::Garbage(error.to_string()));
    }
    let object = object.unwrap_or_default();
    let word = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    Err(RequestError::Refused(Refusal {
        code: status.as_u16(),
        reason: word("reason"),
        message: word("message"),
    }))
}
