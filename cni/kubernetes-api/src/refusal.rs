// SPDX-License-Identifier: Apache-2.0
//! Reasons why a request has no usable response.

use crate::access::AccessError;
use std::{fmt, io};

/// Largest response, bytes. An object has at most 1.5 MiB, which is etcd's limit.
pub(crate) const LONGEST: usize = 2 * 1024 * 1024;

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The program has no usable address, CA or token.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The API server did not answer within the limit, or the connection, TLS or HTTP failed.
    #[error("the API server at {authority} does not answer: {source}")]
    Unreachable {
        /// Host and port, such as `10.96.0.1:443`.
        authority: String,
        /// Reason.
        source: io::Error,
    },
    /// The API server refused the request.
    #[error("the API server refuses: {0}")]
    Refused(Refusal),
    /// The response is malformed.
    #[error("the API server's response is malformed: {0}")]
    Garbage(String),
}

/// A `Status` object of the API server that reports a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status code.
    pub code: u16,
    /// Reason, such as `NotFound`, `Conflict` or `Forbidden`. Empty: the response is from a server between this
    /// program and the API server.
    pub reason: String,
    /// Message of the API server, written for people.
    pub message: String,
}

/// Prints the message with reason and code: `pods "a" not found (404 NotFound)`.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            code,
            reason,
            message,
        } = self;
        match (message.is_empty(), reason.is_empty()) {
            (true, true) => write!(f, "{code}"),
            (true, false) => write!(f, "{code} {reason}"),
            (false, true) => write!(f, "{message} ({code})"),
            (false, false) => write!(f, "{message} ({code} {reason})"),
        }
    }
}

impl RequestError {
    /// Returns the HTTP status code of a refusal.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused(refusal) => Some(refusal.code),
            _ => None,
        }
    }
}
