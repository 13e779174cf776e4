// SPDX-License-Identifier: Apache-2.0
//! One request over HTTP/1.1, with limits of time and size: without TLS, proxy and redirects, on a connection of its
//! own.

use super::MetadataError;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::{
    Method, Request, Uri,
    body::Bytes,
    client::conn::http1,
    header::{CONNECTION, HOST, HeaderName, HeaderValue},
};
use hyper_util::rt::TokioIo;
use std::{fmt, io, net::Ipv6Addr, pin::pin, str::FromStr, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

/// Largest answer, bytes. An address has at most 15.
pub const LONGEST: usize = 4096;

/// The base address of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    host: String,
    port: u16,
}

/// The text is not a base address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the address of a metadata service: http://HOST or http://HOST:PORT")]
pub struct InvalidBase(String);

impl FromStr for Base {
    type Err = InvalidBase;

    fn from_str(text: &str) -> Result<Self, InvalidBase> {
        let invalid = || InvalidBase(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        let is_bare = uri.query().is_none() && matches!(uri.path(), "" | "/");
        let host = match authority.host().strip_prefix('[') {
            None => Some(authority.host()).filter(|it| !it.is_empty() && !it.contains(['[', ']'])),
            // only IPv6 addresses may be in brackets (RFC 3986, section 3.2.2)
            Some(rest) => rest
                .strip_suffix(']')
                .filter(|it| it.parse::<Ipv6Addr>().is_ok()),
        };
        let host = host.ok_or_else(invalid)?;
        let has_user = authority.as_str().contains('@');
        if uri.scheme_str() != Some("http") || !is_bare || has_user {
            return Err(invalid());
        }
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => 80,
            _ => authority
                .port_u16()
                .filter(|it| *it != 0)
                .ok_or_else(invalid)?,
        };
        let host = host.to_owned();
        Ok(Self { host, port })
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("http://")?;
        self.write_authority(f)
    }
}

impl Base {
    fn write_authority(&self, f: &mut impl fmt::Write) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        match self.port {
            80 => Ok(()),
            port => write!(f, ":{port}"),
        }
    }

    fn authority(&self) -> String {
        let mut text = String::new();
        // writing to a String cannot fail
        let _ = self.write_authority(&mut text);
        text
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Query<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    pub(super) header: Option<(HeaderName, HeaderValue)>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Bytes,
}

/// The reason why there is no answer.
#[derive(Debug)]
enum Failure {
    Http(hyper::Error),
    TooLong,
    Body(io::Error),
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        Self::Http(error)
    }
}

/// Sends the request once. `connect` limits the time for the connection, and `whole` the total time.
pub(super) async fn ask(
    base: &Base,
    query: &Query<'_>,
    connect: Duration,
    whole: Duration,
) -> Result<Reply, MetadataError> {
    let end = Instant::now() + whole;
    let unreachable = |source| MetadataError::Unreachable {
        base: base.clone(),
        source,
    };
    let stream = match timeout(connect, TcpStream::connect((&*base.host, base.port))).await {
        Ok(connected) => connected.map_err(unreachable)?,
        Err(_) => {
            let message = format!("no connection within {connect:?}");
            return Err(unreachable(io::Error::new(
                io::ErrorKind::TimedOut,
                message,
            )));
        }
    };
    let place = query.path.to_owned();
    match timeout_at(end, converse(base, query, stream)).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(Failure::TooLong)) => Err(MetadataError::Garbage {
            place,
            value: "…".to_owned(),
            why: format!("longer than {LONGEST} bytes"),
        }),
        Ok(Err(Failure::Http(error))) => Err(MetadataError::Broken {
            place,
            source: io::Error::other(error),
        }),
        Ok(Err(Failure::Body(source))) => Err(MetadataError::Broken { place, source }),
        Err(_) => Err(MetadataError::Slow {
            place,
            limit: whole,
        }),
    }
}

/// Sends a request over `stream`, whose peer sends any bytes, and returns status and body. None: the answer is
/// malformed or too long. For fuzzing.
pub async fn conversed<S>(base: &Base, stream: S) -> Option<(u16, Bytes)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let query = Query {
        method: Method::GET,
        path: super::INSTANCE_ID,
        header: None,
    };
    let reply = converse(base, &query, stream).await.ok()?;
    Some((reply.status, reply.body))
}

async fn converse<S>(base: &Base, query: &Query<'_>, stream: S) -> Result<Reply, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut request = Request::builder()
        .method(query.method.clone())
        .uri(query.path)
        .header(HOST, base.authority())
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Failure::Body(io::Error::other(error)))?;
    if let Some((name, value)) = &query.header {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    let answer = async move {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), LONGEST).collect().await;
        let body = body.map_err(|error| match error.downcast::<LengthLimitError>() {
            Ok(_) => Failure::TooLong,
            Err(error) => Failure::Body(io::Error::other(error)),
        })?;
        let body = body.to_bytes();
        Ok(Reply { status, body })
    };
    let (mut answer, mut connection) = (pin!(answer), pin!(connection));
    tokio::select! {
        biased;
        reply = &mut answer => reply,
        // the connection has closed: the answer is complete or lost
        _ = &mut connection => answer.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_address_is_a_host_and_a_port() {
        for (text, told) in [
            ("http://100.100.100.200", "http://100.100.100.200"),
            ("http://100.100.100.200/", "http://100.100.100.200"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[fd00::1]:80", "http://[fd00::1]"),
            ("http://metadata.internal", "http://metadata.internal"),
        ] {
            let base: Base = text.parse().expect(text);
            assert_eq!(base.to_string(), told);
        }
        for text in [
            "",
            "100.100.100.200",
            "https://100.100.100.200",
            "http://",
            "http://:80",
            "http://host:0",
            "http://host:99999",
            "http://host:",
            "http://user@host",
            "http://host/latest",
            "http://host/?q",
            "file:///etc/passwd",
            "http://a b",
            "http://0.1[fd00::1]:80",
            "http://[0.%]",
            "http://[host]:80",
            "http://[fd00::1]a",
        ] {
            assert!(text.parse::<Base>().is_err(), "{text:?} was taken");
        }
    }
}
