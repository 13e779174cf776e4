// SPDX-License-Identifier: Apache-2.0
//! A client of Kubernetes' API server for a program in a pod: JSON over HTTP/1.1 and TLS, by the service
//! account's token.
//!
//! | module | |
//! |---|---|
//! | [`access`] | where the API server is, and who asks: what kubelet puts into a pod |
//! | [`client`] | one request at a time, bounded in time and size, a new connection for each |
//! | [`watch`] | what becomes of objects, told as it happens |
//!
//! It knows no types of Kubernetes': what is asked for is a path, what comes is a [`serde_json::Value`].

pub mod access;
pub mod client;
pub mod watch;

pub use access::{Access, AccessError};
pub use client::{Client, RequestError};
pub use hyper::{Method, StatusCode};
pub use watch::Watch;
