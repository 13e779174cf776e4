// SPDX-License-Identifier: Apache-2.0
//! A client of Kubernetes' API server for a program in a pod. The client sends JSON over HTTP/1.1 and TLS. Its
//! credential is the token of the service account.
//!
//! | module | owns |
//! |---|---|
//! | [`access`] | address, CA and token, which kubelet puts into a pod |
//! | [`client`] | single requests, with limits of time and size, each on a connection of its own |
//! | [`refusal`] | why a request failed, or was refused |
//! | [`watch`] | the events of a watch |
//!
//! The client knows no Kubernetes types: the caller passes a path, and gets a [`serde_json::Value`].

pub mod access;
pub mod client;
pub mod refusal;
pub mod watch;

pub use access::{Access, AccessError};
pub use client::Client;
pub use http_client::{Method, StatusCode};
pub use refusal::{Refusal, RequestError};
pub use watch::Watch;
