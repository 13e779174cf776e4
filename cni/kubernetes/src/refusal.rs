// SPDX-License-Identifier: Apache-2.0
//! Reasons why there is no usable response.

use crate::access::AccessError;
use std::{fmt, io};

/// Largest response, bytes. An object has at most 1.5 MiB, which is etcd's limit.
pub(crate) const LONGEST: usize = 2 * 1024 * 1024;

/// A request failed or was refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The pod has no usable address, CA or token.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Nothing answers at the address, or the answer is not HTTP.
    #[error("the API server at {authority} does not answer: {source}")]
    Unreachable {
        /// `10.96.0.1:443`
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
    /// Reason, such as `NotFound`, `Conflict` or `Forbidden`. Empty: a server in between answered.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

/// Prints `pods "a" not found (404 NotFound)`.
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
