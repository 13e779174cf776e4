// SPDX-License-Identifier: Apache-2.0
//! Requests to the API server.

use crate::{
    access::{Access, content},
    refusal::{LONGEST, Refusal, RequestError},
    watch::Watch,
};
use http_client::{
    Bytes, HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
    send,
};
use nix::sys::socket::{
    setsockopt,
    sockopt::{KeepAlive, TcpKeepCount, TcpKeepIdle, TcpKeepInterval},
};
use serde_json::Value;
use std::{io, sync::Arc, time::Duration};
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

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Content type of a strategic merge patch. The API server merges lists element by element. The key of the elements
/// depends on the list: a node's conditions are merged by `type`.
const STRATEGIC_MERGE: HeaderValue =
    HeaderValue::from_static("application/strategic-merge-patch+json");

/// A client of the API server.
#[derive(Clone, Debug)]
pub struct Client {
    access: Access,
    agent: HeaderValue,
    limit: Duration,
}

impl Client {
    /// Returns a client with the user agent `agent`. `limit` is the time limit of a request.
    pub fn new(access: Access, agent: &'static str, limit: Duration) -> Self {
        Self {
            access,
            agent: HeaderValue::from_static(agent),
            limit,
        }
    }

    /// Sends a request, and returns the object of the response. `path` begins with `/api` and may have a query. The
    /// body of a PATCH is a strategic merge patch.
    ///
    /// # Errors
    /// The token or the CA is unusable, or the API server does not answer within the limit, refuses the request, or
    /// answers without JSON.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, RequestError> {
        let end = Instant::now() + self.limit;
        let response = self.open(end, method, path, body).await?;
        self.object(end, response).await
    }

    /// Opens the watch at `path`. The time limit applies until the response begins. It does not apply to the events.
    /// TCP keepalive detects within a minute that the API server is unreachable.
    ///
    /// # Errors
    /// The token or the CA is unusable, or the API server does not answer within the limit, or refuses the request.
    pub async fn watch(&self, path: &str) -> Result<Watch, RequestError> {
        let end = Instant::now() + self.limit;
        let response = self.open(end, Method::GET, path, None).await?;
        let status = response.status;
        if status.is_success() {
            return Ok(Watch::new(response));
        }
        match self.object(end, response).await {
            Err(refused) => Err(refused),
            Ok(_) => Err(RequestError::Garbage(format!("{status} for a watch"))),
        }
    }

    /// Sends a request, and returns the response with its body still unread.
    async fn open(
        &self,
        end: Instant,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response, RequestError> {
        let request = self.request(method, path, body)?;
        let config = self.config()?;
        let opened = async {
            let stream = self.connect(config).await?;
            send(stream, request).await.map_err(io::Error::other)
        };
        self.until(end, opened).await
    }

    async fn object(&self, end: Instant, response: Response) -> Result<Value, RequestError> {
        let status = response.status;
        let whole = async { response.whole(LONGEST).await.map_err(io::Error::other) };
        read(status, &self.until(end, whole).await?)
    }

    async fn until<T>(
        &self,
        end: Instant,
        request: impl Future<Output = io::Result<T>>,
    ) -> Result<T, RequestError> {
        let answer = timeout_at(end, request).await.unwrap_or_else(|_| {
            let message = format!("no answer within {:?}", self.limit);
            Err(io::Error::new(io::ErrorKind::TimedOut, message))
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
    ) -> Result<Request<Bytes>, RequestError> {
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
            .body(Bytes::from(text));
        request.map_err(|error| RequestError::Garbage(format!("{path}: {error}")))
    }

    /// Returns a new TLS configuration for each request, because kubelet can replace the CA. Requests are rare, so this
    /// costs little.
    fn config(&self) -> Result<ClientConfig, RequestError> {
        let (text, file) = self.access.certificates()?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
            let certificate = certificate
                .map_err(|_| content(file.clone(), "has a certificate that cannot be read"))?;
            // ignore an unusable certificate: another one may be usable
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
        keep_alive(&stream)?;
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }
}

/// Enables TCP keepalive: the first probe after 30 s of silence, three probes at an interval of 10 s.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, KeepAlive, &true)?;
    setsockopt(stream, TcpKeepIdle, &30)?;
    setsockopt(stream, TcpKeepInterval, &10)?;
    setsockopt(stream, TcpKeepCount, &3)?;
    Ok(())
}

/// Decodes the status and the body of a response.
///
/// # Errors
/// The API server refused, or the body is not JSON.
pub fn read(status: StatusCode, text: &[u8]) -> Result<Value, RequestError> {
    let object = serde_json::from_slice::<Value>(text);
    if status.is_success() {
        return object.map_err(|error| RequestError::Garbage(error.to_string()));
    }
    let object = object.unwrap_or_default();
    let text_of = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    Err(RequestError::Refused(Refusal {
        code: status.as_u16(),
        reason: text_of("reason"),
        message: text_of("message"),
    }))
}
