// SPDX-License-Identifier: Apache-2.0
//! Sends one HTTP/1.1 request with limits of time and size. Uses a new connection, without TLS, proxy or
//! redirects.

use super::{MetadataError, Pace};
use http_client::{Bytes, HttpError, Request, Uri, send};
use std::{fmt, io, net::Ipv6Addr, str::FromStr};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

/// Largest answer in bytes. An address has at most 15 bytes.
pub const LONGEST: usize = 4096;

/// Base URL of the service, as `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base(String);

/// Error: the text is not a base URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the address of a metadata service: it must be http://HOST or http://HOST:PORT"
)]
pub struct InvalidBase(String);

impl FromStr for Base {
    type Err = InvalidBase;

    fn from_str(text: &str) -> Result<Self, InvalidBase> {
        let invalid = || InvalidBase(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let authority = uri.authority().ok_or_else(invalid)?;
        let is_bare = uri.query().is_none() && matches!(uri.path(), "" | "/");
        let host = authority.host();
        let is_host = match host.strip_prefix('[') {
            None => !host.is_empty() && !host.contains(['[', ']']),
            // only IPv6 addresses may be in brackets (RFC 3986, section 3.2.2)
            Some(rest) => rest
                .strip_suffix(']')
                .is_some_and(|it| it.parse::<Ipv6Addr>().is_ok()),
        };
        let has_user = authority.as_str().contains('@');
        if uri.scheme_str() != Some("http") || !is_bare || !is_host || has_user {
            return Err(invalid());
        }
        let port = match authority.as_str().strip_prefix(host) {
            Some("") => 80,
            _ => authority
                .port_u16()
                .filter(|it| *it != 0)
                .ok_or_else(invalid)?,
        };
        Ok(Self(format!("{host}:{port}")))
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority())
    }
}

impl Base {
    /// Returns the value of the header `Host`.
    pub(super) fn authority(&self) -> &str {
        self.0.strip_suffix(":80").unwrap_or(&self.0)
    }
}

/// Sends the request once, and returns status and body.
pub(super) async fn ask(
    base: &Base,
    request: &Request<Bytes>,
    pace: &Pace,
) -> Result<(u16, Bytes), MetadataError> {
    let (connect, whole) = (pace.connect, pace.whole);
    let end = Instant::now() + whole;
    let unreachable = |source| MetadataError::Unreachable {
        base: base.clone(),
        source,
    };
    let stream = match timeout(connect, TcpStream::connect(&*base.0)).await {
        Ok(connected) => connected.map_err(unreachable)?,
        Err(_) => {
            let message = format!("no connection within {connect:?}");
            return Err(unreachable(io::Error::new(
                io::ErrorKind::TimedOut,
                message,
            )));
        }
    };
    let place = request.uri().path().to_owned();
    let answer = async {
        let response = send(stream, request.clone()).await?;
        let status = response.status.as_u16();
        Ok((status, response.whole(LONGEST).await?))
    };
    match timeout_at(end, answer).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(HttpError::TooLong(longest))) => Err(MetadataError::Garbage {
            place,
            value: "…".to_owned(),
            why: format!("longer than {longest} bytes"),
        }),
        Ok(Err(error)) => Err(MetadataError::Broken {
            place,
            source: io::Error::other(error),
        }),
        Err(_) => Err(MetadataError::Slow {
            place,
            limit: whole,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_address_is_a_host_and_a_port() {
        for (text, expected) in [
            ("http://100.100.100.200", "http://100.100.100.200"),
            ("http://100.100.100.200/", "http://100.100.100.200"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[fd00::1]:80", "http://[fd00::1]"),
            ("http://metadata.internal", "http://metadata.internal"),
        ] {
            let base: Base = text.parse().expect(text);
            assert_eq!(base.to_string(), expected);
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
