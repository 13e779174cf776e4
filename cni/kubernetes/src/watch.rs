// SPDX-License-Identifier: Apache-2.0
//! A watch: events, each a line of JSON, for as long as the API server tells any.

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

/// What is told of objects.
pub struct Watch {
    body: Incoming,
    /// It carries the body, and ends with this value.
    connection: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// What has come of the next lines.
    lines: Lines,
    /// There is nothing more to come.
    ended: bool,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// Asks, and comes back with the head of the answer.
pub(crate) async fn open(
    request: Request<Full<Bytes>>,
    stream: TlsStream<TcpStream>,
) -> io::Result<(StatusCode, Watch)> {
    let handshake = http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    let mut connection: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move {
        // what breaks it is told by the body
        let _ = connection.await;
    });
    let response = {
        let mut answer = std::pin::pin!(sender.send_request(request));
        let mut is_over = false;
        poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            if !is_over && connection.as_mut().poll(context).is_ready() {
                is_over = true;
            }
            // what the connection has brought meanwhile
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

/// What has come, of which the last line may be a part.
#[derive(Clone, Debug, Default)]
pub struct Lines(pub Vec<u8>);

impl Lines {
    /// Takes the next event out of it; none: it has not all come yet.
    ///
    /// # Errors
    /// It is no JSON, or too long.
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
    /// The next event; none: the API server has ended the watch, as it does after a time. It may be given up while
    /// it waits, and nothing is lost.
    ///
    /// # Errors
    /// The connection is broken; what comes is no JSON, or too long.
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

    /// All of an answer that is no watch.
    pub(crate) async fn rest(mut self) -> io::Result<Vec<u8>> {
        while let Some(chunk) = self.chunk().await? {
            self.lines.0.extend_from_slice(&chunk);
            if self.lines.0.len() > LONGEST {
                return Err(io::Error::other(format!("more than {LONGEST} bytes")));
            }
        }
        Ok(self.lines.0)
    }

    /// What comes next; none: nothing does.
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
