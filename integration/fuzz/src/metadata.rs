// SPDX-License-Identifier: Apache-2.0
//! The cloud's metadata service: addresses come of what it says, so that nothing odd may.

use crate::assert_one_line;
use erdma::metadata::{Base, answers, http};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Answers, one a line: a word, an address, its network, the router, a hardware address; and a base address.
///
/// # Panics
/// A message has several lines; an address is not in its network, or none that a NIC can have.
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

/// A connection whose other end says these bytes, and hears anything.
struct Said<'a>(&'a [u8]);

impl AsyncRead for Said<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (now, later) = self.0.split_at(self.0.len().min(buffer.remaining()));
        buffer.put_slice(now);
        self.0 = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Said<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// What it says over HTTP.
///
/// # Panics
/// An answer is longer than what is read, or its status is none; it is waited for though the service has closed.
pub fn http(input: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let base: Base = "http://100.100.100.200".parse().expect("an address");
    let conversed = http::conversed(&base, Said(input));
    if let Some((status, body)) = runtime.expect("a runtime").block_on(conversed) {
        assert!((100..1000).contains(&status));
        assert!(body.len() <= http::LONGEST);
    }
}
