// SPDX-License-Identifier: Apache-2.0
//! The cloud's metadata service. Its answers become addresses of NICs, so the daemon must refuse malformed ones.

use crate::assert_one_line;
use erdma::metadata::{Base, answers, http::LONGEST};
use http_client::{Bytes, Request, send};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Answers of the metadata service. The whole input is an instance id; its lines are an address, its network, the
/// router and a hardware address. The whole input and the first line are also base addresses.
///
/// # Panics
/// A message has several lines; an address is not in its network, or cannot be a NIC's.
pub fn metadata(input: &[u8]) {
    match answers::line("instance-id", input) {
        Ok(line) => assert!(line.bytes().all(|it| it.is_ascii_graphic())),
        Err(error) => assert_one_line(&error),
    }
    let text = String::from_utf8_lossy(input);
    let mut lines = text.split('\n');
    let mut next = || lines.next().unwrap_or_default();
    let (ip, cidr, router, mac) = (next(), next(), next(), next());
    match answers::address(("primary-ip-address", ip), ("vswitch-cidr-block", cidr)) {
        Err(error) => assert_one_line(&error),
        Ok(address) => {
            assert_eq!(address.ip().to_string(), ip);
            assert_eq!(answers::unusable(address, None), None);
            match answers::gateway(address, ("gateway", router)) {
                Err(error) => assert_one_line(&error),
                Ok(gateway) => assert!(address.contains(gateway) && gateway != address.ip()),
            }
        }
    }
    match answers::mac("mac", mac) {
        Err(error) => assert_one_line(&error),
        Ok(mac) => assert_eq!(mac.to_string().parse(), Ok(mac)),
    }
    for text in [&*text, ip] {
        if let Ok(base) = text.parse::<Base>() {
            assert_eq!(
                base.to_string()
                    .parse::<Base>()
                    .map(|it| it.to_string())
                    .ok(),
                Some(base.to_string())
            );
        }
    }
}

/// A connection whose peer sends the bytes `left` after the first request.
struct Peer {
    left: io::Cursor<Vec<u8>>,
    has_request: bool,
    reader: Option<Waker>,
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_request {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.left).poll_read(context, buffer)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.has_request = true;
        self.reader.take().into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Answers of the metadata service over HTTP. The daemon uses the same client for the API server and for probes.
///
/// # Panics
/// A body is longer than the limit, or the status is no HTTP status. The target hangs if the client waits for an answer
/// after the service has closed the connection.
pub fn http(input: &[u8]) {
    if let Some((status, body)) = answered(input) {
        assert!((100..1000).contains(&status));
        assert!(body.len() <= LONGEST);
    }
}

/// Returns status and body of the answer `input`.
fn answered(input: &[u8]) -> Option<(u16, Vec<u8>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let peer = Peer {
        left: io::Cursor::new(input.to_vec()),
        has_request: false,
        reader: None,
    };
    runtime.expect("a runtime").block_on(async {
        let response = send(peer, Request::new(Bytes::new())).await.ok()?;
        let status = response.status.as_u16();
        let body = response.whole(LONGEST).await.ok()?;
        Some((status, body.to_vec()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The peer answers only after the request, because the client rejects an answer that comes before.
    #[test]
    fn an_answer_is_read() {
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ni-1";
        assert_eq!(answered(response), Some((200, b"i-1".to_vec())));
        assert_eq!(answered(b"SSH-2.0-x\r\n"), None);
    }
}
