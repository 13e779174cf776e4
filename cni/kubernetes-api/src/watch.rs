// SPDX-License-Identifier: Apache-2.0
//! A watch: a stream of events that lasts until the API server closes it. Each event is one JSON object in one line.

use crate::refusal::{LONGEST, RequestError};
use http_client::Response;
use serde_json::Value;

/// The event stream of a watch.
#[derive(Debug)]
pub struct Watch {
    response: Response,
    /// Received bytes that [`Watch::next`] has not returned as events yet.
    lines: Lines,
}

/// Received bytes, split into lines. The last line may be incomplete.
#[derive(Clone, Debug, Default)]
pub struct Lines(pub Vec<u8>);

impl Lines {
    /// Removes the next event and returns it. Returns `None` if the line is incomplete.
    ///
    /// # Errors
    /// The line is not JSON, or is longer than the limit.
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

    /// Returns the next event. Returns `None` if the API server has ended the watch, which it does regularly. The
    /// future is cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// The connection is broken, the line is not JSON, or the line is too long.
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
