// SPDX-License-Identifier: Apache-2.0
//! A watch: a stream of events, each one JSON object in a line, until the API server closes the stream.

use crate::refusal::{LONGEST, RequestError};
use http_client::Response;
use serde_json::Value;

/// The event stream of a watch.
#[derive(Debug)]
pub struct Watch {
    response: Response,
    /// Received bytes that are not yet returned as events.
    lines: Lines,
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
    pub(crate) fn new(response: Response) -> Self {
        let lines = Lines::default();
        Self { response, lines }
    }

    /// Returns the next event. `None`: the API server has ended the watch, which it does regularly. The future is
    /// cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// The connection is broken, or the line is not JSON or too long.
    pub async fn next(&mut self) -> Result<Option<Value>, RequestError> {
        loop {
            if let Some(event) = self.lines.event()? {
                return Ok(Some(event));
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.lines.0.extend_from_slice(&chunk),
                Ok(None) => return Ok(None),
                Err(error) => return Err(RequestError::Garbage(error.to_string())),
            }
        }
    }
}
