// SPDX-License-Identifier: Apache-2.0
//! One HTTP/1.1 request on a new connection: to the API server over TLS, to the cloud's metadata service over TCP, or
//! to a daemon's probe socket. The caller makes the connection, and limits the time.
//!
//! The client supports no redirects, proxies or connection pools, because each of them could send a token to another
//! server.

pub use hyper::{
    Method, Request, StatusCode, Uri,
    body::Bytes,
    header::{self, HeaderName, HeaderValue},
};

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

/// Reason why a request has no usable response.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection broke, or the response is not HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The body has more bytes than the limit.
    #[error("more than {0} bytes")]
    TooLong(usize),
}

/// A response whose body is still unread. Dropping it closes the connection.
#[derive(Debug)]
pub struct Response {
    /// Status code.
    pub status: StatusCode,
    body: Incoming,
    _connection: JoinSet<()>,
}

/// Sends `request` over `stream`, with the header `Connection: close`, and waits for the head of the response.
///
/// # Errors
/// The connection broke, or the response is not HTTP.
pub async fn send<S>(stream: S, mut request: Request<Bytes>) -> Result<Response, HttpError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let close = HeaderValue::from_static("close");
    request.headers_mut().insert(header::CONNECTION, close);
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    let mut connection = JoinSet::new();
    connection.spawn(async move {
        // ignore the error, because the sender and the body report it too
        let _ = driver.await;
    });
    let response = sender
        .send_request(request.map(Full::<Bytes>::from))
        .await?;
    Ok(Response {
        status: response.status(),
        body: response.into_body(),
        _connection: connection,
    })
}

impl Response {
    /// Returns the next part of the body. Returns `None` at the end of the body. The future is cancel-safe.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        match self.body.frame().await.transpose()? {
            Some(frame) => Ok(Some(frame.into_data().unwrap_or_default())),
            None => Ok(None),
        }
    }

    /// Returns the whole body.
    ///
    /// # Errors
    /// The connection broke, or the body has more than `longest` bytes.
    pub async fn whole(self, longest: usize) -> Result<Bytes, HttpError> {
        let body = Limited::new(self.body, longest).collect().await;
        match body.map_err(|error| error.downcast::<hyper::Error>()) {
            Ok(body) => Ok(body.to_bytes()),
            Err(Ok(error)) => Err(HttpError::Http(*error)),
            Err(Err(error)) => {
                debug_assert!(error.is::<LengthLimitError>());
                Err(HttpError::TooLong(longest))
            }
        }
    }
}
