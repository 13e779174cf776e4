// SPDX-License-Identifier: Apache-2.0
//! A watch: events, one JSON object in each line, until the API server closes the stream.

use crate::client::{LONGEST, RequestError};
use http_body_util::Full;
use hyper::{
    Request, StatusCode,
    body::{Body, Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::{fmt, future::poll_fn, io, pin::Pin, task::Poll};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The event stream of a watch.
pub struct Watch {
    body: Incoming,
    /// The connection's future, which has to be polled for the body to arrive.
    connection: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Received bytes that are not yet returned as events.
    lines: Lines,
    /// True if the API server has closed the stream.
    ended: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Sends the request, and returns the status and the stream.
pub(crate) async fn open(
    request: Request<Full<Bytes>>,
    stream: TlsStream<TcpStream>,
) -> io::Result<(StatusCode, Watch)> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    let mut connection: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        // the body reports the connection's error
        let _ = connection.await;
    });
    let response = {
        let mut answer = std::pin::pin!(sender.send_request(request));
        let mut is_closed = false;
        poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            if !is_closed && connection.as_mut().poll(context).is_ready() {
                is_closed = true;
            }
            // the connection may have delivered the response meanwhile
            answer.as_mut().poll(context)
        })
        .await
    };
    let response = response.map_err(io::Error::other)?;
    let status = response.status();
    let watch = Watch {
        body: response.into_body(),
        connection: Some(connection),
        lines: Lines::default(),
        ended: false,
    };
    Ok((status, watch))
}

/// Received bytes. The last line may be incomplete.
#[derive(Clone, Debug, Default)]
pub struct Lines(pub Vec<u8>);

impl Lines {
    /// Removes the next event and returns it. None: the line is incomplete.
    ///
    /// # Errors
    /// The line is not JSON, or it is longer than the limit.
    pub fn event(&mut self) -> Result<Option<Value>, RequestError> {
        if let Some(end) = self.0.iter().position(|it| *it == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            let event = serde_json::from_slice(&line);
            return event.map_err(|error| RequestError::Garbage(error.to_string()));
        }
        match self.0.len() > LONGEST {
            true => Err(RequestError::Garbage(format!("more than {LONGEST} bytes"))),
            false => Ok(None),
        }
    }
}

impl Watch {
    /// Returns the next event. None: the API server has ended the watch, as it regularly does. The future is
    /// cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// The connection is broken, or the line is not JSON or too long.
    pub async fn next(&mut self) -> Result<Option<Value>, RequestError> {
        loop {
            if let Some(event) = self.lines.event()? {
                return Ok(Some(event));
            }
            match self.chunk().await {
                Ok(Some(chunk)) => self.lines.0.extend_from_slice(&chunk),
                Ok(None) => return Ok(None),
                Err(error) => return Err(RequestError::Garbage(error.to_string())),
            }
        }
    }

    /// Returns the whole body of a response that is not a watch.
    pub(crate) async fn rest(mut self) -> io::Result<Vec<u8>> {
        while let Some(chunk) = self.chunk().await? {
            self.lines.0.extend_from_slice(&chunk);
            if self.lines.0.len() > LONGEST {
                return Err(io::Error::other(format!("more than {LONGEST} bytes")));
            }
        }
        Ok(self.lines.0)
    }

    /// Returns the next part of the body. None: the body is complete.
    async fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        if self.ended {
            return Ok(None);
        }
        let frame = poll_fn(|context| {
            let mut body = Pin::new(&mut self.body);
            if let Poll::Ready(frame) = body.as_mut().poll_frame(context) {
                return Poll::Ready(frame);
            }
            if let Some(connection) = &mut self.connection
                && connection.as_mut().poll(context).is_ready()
            {
                self.connection = None;
            }
            Pin::new(&mut self.body).poll_frame(context)
        });
        match frame.await {
            Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
            Some(Err(error)) => Err(io::Error::other(error)),
            None => {
                self.ended = true;
                Ok(None)
            }
        }
    }
}
